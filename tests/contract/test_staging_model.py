"""Random writes, crashes, rewinds, takeovers and rot against a part: what it vouches for is always right."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import dlpipe.store.part as part_module
from dlpipe.core.errors import LeaseLost
from dlpipe.core.ports import Part
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging

URL = "http://files.example/a.bin"
REMOTE = bytes(range(256)) * 40
"""The file as the server has it: whoever writes at an offset writes these bytes."""
SMALL_CHECKPOINT = 1_000


class PartMachine(RuleBasedStateMachine):
    """A holder writes the remote file; crashes are closes without a flush. The model: bytes never go wrong."""

    @initialize()
    def start(self) -> None:
        self.folder = ExitStack()
        self.root = Path(self.folder.enter_context(tempfile.TemporaryDirectory()))
        self.checkpoint, part_module.VOUCH_BYTES = part_module.VOUCH_BYTES, SMALL_CHECKPOINT
        self.sparse, part_module.SPARSE_BYTES = part_module.SPARSE_BYTES, 2 * SMALL_CHECKPOINT
        self.staging = LocalStaging(self.root)
        self.stack = ExitStack()
        self.part: Part | None = None
        self.fence = 0
        self.wrong = False
        self.late: list[Part] = []

    @precondition(lambda self: self.part is None)
    @rule()
    def claim(self) -> None:
        """A new run, possibly with an overtaken holder still about."""
        self.fence += 1
        self.stack = ExitStack()
        self.part = self.stack.enter_context(self.staging.claim("t", URL, "job", self.fence))
        facts = self.part.facts
        if facts is None or not facts.good:
            self.part.begin(RemoteFacts(200, "u", etag='"v"'))
        else:
            good = self.part.verify(facts.good)
            assert good <= facts.good
            assert self.wrong or good == facts.good
        self.wrong = False

    @precondition(lambda self: self.part is not None)
    @rule(size=st.integers(1, 2_500))
    def write(self, size: int) -> None:
        assert self.part is not None
        self.part.write(REMOTE[self.part.offset : self.part.offset + size])

    @precondition(lambda self: self.part is not None)
    @rule()
    def flush(self) -> None:
        assert self.part is not None
        self.part.flush()

    @precondition(lambda self: self.part is not None)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        assert self.part is not None
        to = int(self.part.offset * share)
        assert self.part.rewind(to) == to

    @precondition(lambda self: self.part is not None)
    @rule()
    def begin_anew(self) -> None:
        assert self.part is not None
        self.part.begin(RemoteFacts(200, "u", etag='"v"'))

    @precondition(lambda self: self.part is not None)
    @rule()
    def crash(self) -> None:
        self.stack.close()
        self.part = None

    @precondition(lambda self: self.part is not None and len(self.late) < 3)
    @rule()
    def stop(self) -> None:
        """The holder is stopped: its lock stays, and the next one has to overtake it."""
        assert self.part is not None
        self.late.append(self.part)
        self.folder.push(self.stack.pop_all())
        self.part = None

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 2), junk=st.binary(min_size=1, max_size=500))
    def wake_up_and_write(self, which: int, junk: bytes) -> None:
        """Once overtaken, its file is nobody's; before, it is the part, and its bytes are not vouched for."""
        late = self.late[which % len(self.late)]
        if os.fstat(late.fileno()).st_nlink == 0:
            with suppress(LeaseLost):  # it finds out as soon as it would vouch for something
                late.write(junk)

    @precondition(lambda self: self.part is None)
    @rule(share=st.floats(0, 0.99), cut=st.booleans())
    def rot(self, share: float, cut: bool) -> None:
        for file in self.root.rglob("*.part"):
            size = file.stat().st_size
            at = int(size * share)
            if not size:
                continue
            with file.open("r+b") as part:
                part.seek(at)
                if cut:
                    part.truncate(at)
                else:
                    byte = part.read(1)
                    part.seek(at)
                    part.write(bytes([byte[0] ^ 0xFF]))
            self.wrong = True

    @precondition(lambda self: self.part is not None)
    @rule()
    def finish(self) -> None:
        assert self.part is not None
        if self.part.offset < len(REMOTE):
            self.part.write(REMOTE[self.part.offset :])
        assert self.part.finish()[:2] == (hashlib.sha256(REMOTE).hexdigest(), len(REMOTE))
        assert Path(self.part.path).read_bytes() == REMOTE
        self.part.remove()
        self.stack.close()
        self.part = None

    @invariant()
    def what_is_held_is_right(self) -> None:
        part = getattr(self, "part", None)
        if part is None:
            return
        assert part.sha256 == hashlib.sha256(REMOTE[: part.offset]).hexdigest()
        assert os.pread(part.fileno(), part.offset, 0) == REMOTE[: part.offset]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.stack.close()
            self.folder.close()
            part_module.VOUCH_BYTES, part_module.SPARSE_BYTES = self.checkpoint, self.sparse


TestPart = PartMachine.TestCase
TestPart.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
