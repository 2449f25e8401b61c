"""The port Staging: what is held is what is vouched for, and never what merely lies there. RESUME-2."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlpipe.core.errors import Postponed
from dlpipe.core.ports import Part, Staging
from dlpipe.store import LocalStaging
from dlpipe.store.behind import BLOCK_BYTES, BLOCKS
from dlpipe.store.part import LARGE_BLOCK_BYTES, LARGE_BYTES, VOUCH_BYTES
from tests.parts import begun, claim, facts, file_of, sidecar_of
from tests.servers import wait_until
from tests.world import some_bytes

MIB = VOUCH_BYTES
BODY = some_bytes(3 * MIB + 500)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return LocalStaging(tmp_path)


# ── what is vouched for ───────────────────────────────────────────────────────────────────────────


def test_what_was_flushed_is_there_for_the_next_holder(staging: Staging) -> None:
    with ExitStack() as stack:
        begun(stack, staging, data=BODY)
    with claim(staging, "other") as part:
        assert part.facts is not None
        assert (part.facts.good, part.facts.etag, part.facts.complete) == (len(BODY), '"v"', False)
        assert part.verify(len(BODY)) == len(BODY) == part.offset
        assert part.sha256 == hashlib.sha256(BODY).hexdigest()
        assert part.read(0, 10) == BODY[:10]
        part.write(b"tail")
        assert part.finish()[:2] == (hashlib.sha256(BODY + b"tail").hexdigest(), len(BODY) + 4)
    with claim(staging) as part:
        assert part.facts is not None
        assert (part.facts.complete, part.facts.total) == (True, len(BODY) + 4)


def good(part: Part) -> int:
    return part.facts.good if part.facts else 0


def fill(part: Part, blocks: int, size: int = BLOCK_BYTES) -> None:
    for _ in range(blocks):
        block = part.buffer()
        assert len(block) == size
        # Besides what comes into the block that is lent now.
        assert part.offset - good(part) <= (BLOCKS - 1) * size
        block[:] = some_bytes(size)
        part.write(block)


@pytest.mark.parametrize(
    ("total", "block"),
    [(None, BLOCK_BYTES), (LARGE_BYTES - 1, BLOCK_BYTES), (LARGE_BYTES, LARGE_BLOCK_BYTES)],
)
def test_what_a_kill_may_cost_is_bounded_while_bytes_come_fast(staging: Staging, total: int | None, block: int) -> None:
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        part.begin(facts(total))
        fill(part, 40, block)


def test_bytes_of_a_line_that_stands_still_are_vouched_for(staging: Staging, tmp_path: Path) -> None:
    """Also when nobody comes to write more: by the time a kill comes, it must be on record what was held."""
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        part.begin(facts(None))
        fill(part, BLOCKS)
        wait_until(lambda: good(part) == part.offset, "all of it to be vouched for")
        noted = sidecar_of(tmp_path).read_bytes()
        assert f"\n{part.offset} ".encode() in noted or f"[{part.offset}, ".encode() in noted


def test_a_block_that_was_not_full_is_vouched_for_as_well(staging: Staging) -> None:
    """Else it comes on top of the three blocks that a burst behind it may cost."""
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        part.begin(facts(None))
        fill(part, BLOCKS)
        wait_until(lambda: good(part) == part.offset, "the full ones to be vouched for")
        part.write(part.buffer()[:1000])
        wait_until(lambda: good(part) == part.offset, "all of it to be vouched for")


@pytest.mark.parametrize("totals", [(LARGE_BYTES, 8 * BLOCK_BYTES), (8 * BLOCK_BYTES, LARGE_BYTES), (LARGE_BYTES,) * 2])
def test_a_file_of_another_size_comes_in_blocks_for_that_size(staging: Staging, totals: tuple[int, int]) -> None:
    """Another server may have another file, after the first has sent some of its own."""
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        for total in totals:
            part.begin(facts(total))
            block = LARGE_BLOCK_BYTES if total >= LARGE_BYTES else BLOCK_BYTES
            fill(part, BLOCKS + 1, block)
            assert part.sha256 == hashlib.sha256((BLOCKS + 1) * some_bytes(block)).hexdigest()


def test_size_alone_is_no_progress(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        part.begin(facts())
        part.write(BODY[: MIB - 1])  # short of the first checkpoint, and never flushed
        assert file_of(tmp_path).stat().st_size == MIB - 1
    with claim(staging) as part:
        assert part.facts is None
        assert part.verify(MIB) == 0


@pytest.mark.parametrize(
    ("harm", "left"),
    [
        (lambda f: os.truncate(f, 2 * MIB + 5), 2 * MIB),
        (lambda f: os.truncate(f, 0), 0),
        (lambda f: write_at(f, 2 * MIB + 7, b"!"), 2 * MIB),
        (lambda f: write_at(f, 0, b"!!"), 0),
        (lambda f: write_at(f, len(BODY), b"garbage past the end"), len(BODY)),
    ],
    ids=["cut", "emptied", "altered late", "altered at the front", "leftovers past the end"],
)
def test_after_harm_the_furthest_right_checkpoint_counts(
    staging: Staging, tmp_path: Path, harm: Callable[[Path], None], left: int
) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=b"")
        for begin in range(0, len(BODY), MIB // 2):
            part.write(BODY[begin : begin + MIB // 2])
        part.flush()
    harm(file_of(tmp_path))
    with claim(staging) as part:
        assert part.verify(len(BODY)) == left
        part.write(BODY[left:])
        assert part.finish()[:2] == (hashlib.sha256(BODY).hexdigest(), len(BODY))
    assert file_of(tmp_path).read_bytes() == BODY  # leftovers are cut


def test_verify_goes_no_further_than_asked(staging: Staging) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY[:100])
        part.write(BODY[100:200])
        part.flush()
    with claim(staging) as part:
        assert part.verify(150) == 100


def torn(text: bytes) -> bytes:
    return text[:-20]


def garbled(text: bytes) -> bytes:
    return text.replace(b"[[3, ", b"[[9, ")


@pytest.mark.parametrize(
    "harm",
    [
        torn,
        garbled,
        lambda text: b"",
        lambda text: b"\xff\xfe\x00",
        lambda text: b"[]",
        lambda text: b'{"body": 5, "sha256": ""}',
        lambda text: signed({"v": 99}),
        lambda text: signed({"v": 1, "checkpoints": "no"}),
        lambda text: signed([1]),
        lambda text: text.replace(b"[[3, ", b"[[-3, "),
        lambda text: text.replace(b" ", b"\xff"),
        lambda text: b"{" + text,
    ],
    ids=[
        "torn",
        "garbled",
        "empty",
        "no text",
        "a list",
        "no body",
        "a newer one",
        "no marks",
        "no record",
        "a number",
        "bytes",
        "a head",
    ],
)
def test_a_torn_or_garbled_sidecar_vouches_for_nothing(
    staging: Staging, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    with ExitStack() as stack:
        begun(stack, staging)
    side = sidecar_of(tmp_path)
    harmed = harm(side.read_bytes())
    assert harmed != side.read_bytes()
    side.write_bytes(harmed)
    with claim(staging) as part:
        assert part.facts is None
        assert part.verify(3) == 0


def test_checkpoints_are_added_and_only_whole_lines_in_their_order_count(staging: Staging, tmp_path: Path) -> None:
    data = bytes(range(250)) * 20
    with claim(staging) as part:
        part.begin(facts(5000))
        for begin in range(0, 5000, 1000):
            part.write(data[begin : begin + 1000])
            part.flush()
    side = sidecar_of(tmp_path)
    # The first bytes come with the sidecar itself, and what follows is added to it.
    head, *notes, end = side.read_bytes().split(b"\n")
    assert (len(notes), end) == (4, b"")
    for kept, good in (
        (notes, 5000),
        ([*notes[:2], notes[2][:-1]], 3000),
        ([*notes[:2], notes[3], notes[2]], 5000),
        ([notes[0], notes[2], notes[1]], 4000),
        ([notes[1], b"", notes[2]], 3000),
    ):
        side.write_bytes(b"\n".join([head, *kept]))
        with claim(staging) as part:
            assert part.facts is not None
            assert part.facts.good == good
            assert part.verify(5000) == good
        side.write_bytes(b"\n".join([head, *kept]))


def test_a_sidecar_of_another_file_vouches_for_nothing(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        begun(stack, staging)
    file = file_of(tmp_path)
    other = file.with_suffix(".copy")
    other.write_bytes(file.read_bytes())
    other.rename(file)
    with claim(staging) as part:
        assert part.facts is None


def test_to_begin_never_cuts_the_old_file(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY)
        with open(file_of(tmp_path), "rb") as old:
            part.begin(facts())
            assert os.fstat(old.fileno()).st_size == len(BODY)
            assert (part.offset, os.fstat(part.fileno()).st_size) == (0, 0)
        with pytest.raises(Postponed), claim(staging, "other"):  # the new file was never unlocked
            pass


def test_to_rewind_forgets_what_came_after(staging: Staging) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY)
        assert part.rewind(1000) == 1000
        assert part.sha256 == hashlib.sha256(BODY[:1000]).hexdigest()
        part.write(b"new")
        part.flush()
    with claim(staging) as part:
        assert part.verify(len(BODY)) == 1003
        assert part.sha256 == hashlib.sha256(BODY[:1000] + b"new").hexdigest()


def test_a_removed_part_is_gone_and_its_name_free(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        begun(stack, staging).remove()
        assert not [path for path in (tmp_path / ".staging").rglob("*") if path.is_file()]
    with claim(staging, "other") as part:
        assert part.facts is None


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def signed(body: object) -> bytes:
    text = json.dumps(body)
    return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()
