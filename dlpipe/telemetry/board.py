"""Numbers that a worker's main process and its children count together, also when a child is killed (ADR 30).

Memory is shared by being there before the fork. It is cut into slots; a process writes to its own slot only, so
nobody waits for anybody. A slot is held by a record lock, which ends with its process: who comes after it goes on
with the numbers that are there, and nothing that was counted is lost or grows with the number of processes.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import tempfile
import threading
import weakref
from collections import Counter

log = logging.getLogger(__name__)

SLOTS = 256
ENTRIES = 1024
"""Numbers in one slot. Names come from closed sets, so this is a bound against mistakes."""
_ENTRY = 128
_VALUE = struct.Struct("<d")
_LENGTH = struct.Struct("<H")
_NAME_AT = _VALUE.size + _LENGTH.size
NAME_BYTES = _ENTRY - _NAME_AT


class Board:
    """Make it before the processes are forked that count on it."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        # Pages that nobody writes to are never there; a file on a full disk would end its writer instead.
        self._memory = mmap.mmap(-1, slots * ENTRIES * _ENTRY)
        with tempfile.TemporaryFile() as file:
            self._locks = os.dup(file.fileno())  # of a file without a name or a byte, for its record locks
        weakref.finalize(self, os.close, self._locks)
        self._forget()
        this = weakref.ref(self)

        def after_fork() -> None:
            board = this()
            if board is not None:
                board._forget()

        os.register_at_fork(after_in_child=after_fork)

    def _forget(self) -> None:
        """A forked child has a slot of its own, and not its parent's lock, which a thread may have held."""
        self._lock = threading.Lock()
        self._slot: int | None = None
        self._places: dict[str, int] | None = None

    def add(self, amounts: dict[str, float]) -> None:
        """Add to these numbers; a name that is new begins at 0."""
        with self._lock:
            if self._places is None:
                self._places = self._take_slot()
            for name, amount in amounts.items():
                at = self._places.get(name)
                if at is None:
                    at = self._new(name, self._places)
                if at is not None:
                    _VALUE.pack_into(self._memory, at, _VALUE.unpack_from(self._memory, at)[0] + amount)

    def read(self) -> Counter[str]:
        """All numbers, over all processes that ever counted here."""
        found: Counter[str] = Counter()
        for slot in range(self._slots):
            for name, at in self._entries(slot).items():
                found[name] += _VALUE.unpack_from(self._memory, at)[0]
        return found

    # ── slots ──

    def _take_slot(self) -> dict[str, int]:
        for slot in range(self._slots):
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue  # a living process has it
            self._slot = slot
            return self._entries(slot)
        log.error("more than %d processes count at once: this one does not", self._slots)
        return {}

    def _entries(self, slot: int) -> dict[str, int]:
        """Where each number of a slot is."""
        found = {}
        begin = slot * ENTRIES * _ENTRY
        for at in range(begin, begin + ENTRIES * _ENTRY, _ENTRY):
            (length,) = _LENGTH.unpack_from(self._memory, at + _VALUE.size)
            if not length:
                break
            found[self._memory[at + _NAME_AT : at + _NAME_AT + length].decode()] = at
        return found

    def _new(self, name: str, places: dict[str, int]) -> int | None:
        text = name.encode()
        if self._slot is None or len(places) >= ENTRIES or len(text) > NAME_BYTES:
            return None
        at = (self._slot * ENTRIES + len(places)) * _ENTRY
        self._memory[at + _NAME_AT : at + _NAME_AT + len(text)] = text
        _VALUE.pack_into(self._memory, at, 0.0)
        # Last: whoever is killed before this has written nothing.
        _LENGTH.pack_into(self._memory, at + _VALUE.size, len(text))
        places[name] = at
        return at
