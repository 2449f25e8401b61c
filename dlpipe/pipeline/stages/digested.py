"""What the server declares of its bytes, against what the part holds (rows 44 to 46)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dlpipe.core import digests
from dlpipe.core.digests import Digest
from dlpipe.core.ports import Part

STEP = 1 << 20


def file_agrees(part: Part, declared: tuple[Digest, ...], check: Callable[[], None]) -> bool | None:
    """Whether all that is held is what was declared; None when nothing was. `check` is called now and then."""
    computed = {"sha-256": bytes.fromhex(part.sha256)}  # this one came along; others cost another reading
    if digests.agree(declared, computed) is not False:
        computed |= _read(part, 0, part.offset, {d.algorithm for d in declared} - computed.keys(), check)
    return digests.agree(declared, computed)


def range_agrees(
    part: Part, start: int, end: int, declared: tuple[Digest, ...], check: Callable[[], None]
) -> bool | None:
    """The same of the bytes from `start` to `end`, which one message brought."""
    return digests.agree(declared, _read(part, start, end, {d.algorithm for d in declared}, check))


class Hashing:
    """The same of bytes as they come by."""

    def __init__(self, declared: tuple[Digest, ...]) -> None:
        self._declared = declared
        self._hashes = _hashes({one.algorithm for one in declared})

    def update(self, data: bytes) -> None:
        for each in self._hashes.values():
            each.update(data)

    def agrees(self) -> bool | None:
        return digests.agree(self._declared, {name: each.digest() for name, each in self._hashes.items()})


def _hashes(algorithms: set[str]) -> dict[str, hashlib._Hash]:
    # md5 here finds accidents, and is all that some stores tell; it is nobody's proof.
    return {name: hashlib.new(digests.HASHES[name], usedforsecurity=False) for name in algorithms}


def _read(part: Part, start: int, end: int, algorithms: set[str], check: Callable[[], None]) -> dict[str, bytes]:
    hashes = _hashes(algorithms)
    at = start
    while hashes and at < end:
        check()
        data = part.read(at, min(STEP, end - at))
        if not data:
            return {}  # less is held than was said: nothing can be compared
        for each in hashes.values():
            each.update(data)
        at += len(data)
    return {name: each.digest() for name, each in hashes.items()}
