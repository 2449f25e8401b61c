"""Pieces ahead of the front: any order, any crash, any rot, and what is vouched for is always right."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dlpipe.core import segments
from dlpipe.core.ports import Part
from dlpipe.core.remote import RemoteFacts
from dlpipe.core.segments import Span
from dlpipe.store import LocalStaging

URL = "http://files.example/a.bin"
REMOTE = bytes(range(256)) * 40
PIECE = 700
FACTS = RemoteFacts(200, "u", etag='"v"', content_length=len(REMOTE))


@pytest.mark.parametrize("at", [None, PIECE, 2 * PIECE - 1])
def test_a_piece_that_rots_is_forgotten_and_the_others_stay(tmp_path: Path, at: int | None) -> None:
    staging = LocalStaging(tmp_path)
    with staging.claim("t", URL, "job", 1) as part:
        part.begin(FACTS)
        for start in (PIECE, 3 * PIECE):
            data = REMOTE[start : start + PIECE]
            part.put(start, data)
            part.keep(start, start + PIECE, hashlib.sha256(data).hexdigest())
        assert part.offset == 0
    if at is not None:
        (file,) = tmp_path.rglob("*.part")
        with file.open("r+b") as damaged:
            damaged.seek(at)
            damaged.write(bytes([REMOTE[at] ^ 1]))
    with staging.claim("t", URL, "job", 2) as part:
        assert part.begun == FACTS
        first = [(PIECE, 2 * PIECE)] if at is None else []
        assert part.verify_pieces() == [*first, (3 * PIECE, 4 * PIECE)]


class PieceMachine(RuleBasedStateMachine):
    """Several fetchers with spans in hand; a crash loses what they had, never what was kept."""

    @initialize()
    def start(self) -> None:
        self.folder = ExitStack()
        self.root = Path(self.folder.enter_context(tempfile.TemporaryDirectory()))
        self.staging = LocalStaging(self.root)
        self.stack = ExitStack()
        self.part: Part | None = None
        self.fence = 0
        self.kept: set[tuple[int, int]] = set()
        self.rotten = False

    @precondition(lambda self: self.part is None)
    @rule()
    def claim(self) -> None:
        self.fence += 1
        self.stack = ExitStack()
        part = self.stack.enter_context(self.staging.claim("t", URL, "job", self.fence))
        facts = part.facts
        if facts is not None:
            part.verify(facts.good)
        if part.begun is None:
            part.begin(FACTS)
            self.kept = set()
        good = part.verify_pieces()
        if not self.rotten:  # nothing that was kept is asked for again
            assert all(end <= part.offset or (start, end) in good for start, end in self.kept)
        self.kept = {(start, end) for start, end in self.kept if end <= part.offset or (start, end) in good}
        self.rotten = False
        self.waiting = segments.missing(part.offset, len(REMOTE), good, PIECE, 0)
        self.in_hand: list[tuple[Span, int]] = []
        self.part = part

    @precondition(lambda self: self.part is not None and self.waiting and len(self.in_hand) < 4)
    @rule()
    def take(self) -> None:
        self.in_hand.append((self.waiting.pop(0), 0))

    @precondition(lambda self: self.part is not None and self.in_hand)
    @rule(which=st.integers(0, 3), size=st.integers(1, 400))
    def put(self, which: int, size: int) -> None:
        assert self.part is not None
        index = which % len(self.in_hand)
        span, done = self.in_hand[index]
        data = REMOTE[span.start + done : min(span.end, span.start + done + size)]
        self.part.put(span.start + done, data)
        self.in_hand[index] = (span, done + len(data))

    @precondition(lambda self: self.part is not None and any(done == span.size for span, done in self.in_hand))
    @rule(which=st.integers(0, 3))
    def keep(self, which: int) -> None:
        assert self.part is not None
        full = [pair for pair in self.in_hand if pair[1] == pair[0].size]
        span, _ = pair = full[which % len(full)]
        self.part.keep(span.start, span.end, hashlib.sha256(REMOTE[span.start : span.end]).hexdigest())
        self.in_hand.remove(pair)
        self.kept.add((span.start, span.end))

    @precondition(lambda self: self.part is not None and self.part.offset < len(REMOTE))
    @rule(size=st.integers(1, 2_000))
    def fall_back_to_one_connection(self, size: int) -> None:
        """What fetchers have in hand is given up; one connection writes on from the front, over pieces too."""
        assert self.part is not None
        self.in_hand, self.waiting = [], []
        self.part.write(REMOTE[self.part.offset : self.part.offset + size])
        self.part.flush()
        self.kept = set()  # they may be written over; whether they still count is for the hash to say

    @precondition(lambda self: self.part is not None)
    @rule()
    def begin_anew(self) -> None:
        assert self.part is not None
        self.part.begin(FACTS)
        self.in_hand, self.kept = [], set()
        self.waiting = segments.missing(0, len(REMOTE), [], PIECE, 0)

    @precondition(lambda self: self.part is not None)
    @rule()
    def crash(self) -> None:
        self.stack.close()
        self.part = None

    @precondition(lambda self: self.part is None)
    @rule(share=st.floats(0, 0.99), cut=st.booleans())
    def rot(self, share: float, cut: bool) -> None:
        for file in self.root.rglob("*.part"):
            size = file.stat().st_size
            at = int(size * share)
            with file.open("r+b") as part:
                part.seek(at)
                if cut:
                    part.truncate(at)
                elif size:
                    byte = part.read(1)
                    part.seek(at)
                    part.write(bytes([byte[0] ^ 0xFF]))
            self.rotten = True

    @precondition(lambda self: self.part is not None and self.part.offset == len(REMOTE))
    @rule()
    def finish(self) -> None:
        assert self.part is not None
        assert self.part.finish()[:2] == (hashlib.sha256(REMOTE).hexdigest(), len(REMOTE))

    @invariant()
    def the_front_is_right(self) -> None:
        part = getattr(self, "part", None)
        if part is None:
            return
        assert part.sha256 == hashlib.sha256(REMOTE[: part.offset]).hexdigest()
        assert os.pread(part.fileno(), part.offset, 0) == REMOTE[: part.offset]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.stack.close()
            self.folder.close()


TestPieces = PieceMachine.TestCase
TestPieces.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
