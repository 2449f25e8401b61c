"""Blocks go to another thread in their order, and come back only when it is done with them."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from dlpipe.store import behind as module
from dlpipe.store.behind import BLOCKS, Behind

DEADLINE_S = 20.0


class Trouble(Exception):
    pass


def give(behind: Behind, data: bytes) -> None:
    block = behind.buffer()
    block[: len(data)] = data
    assert behind.hand_over(block[: len(data)])


def test_blocks_are_worked_on_in_their_order_and_keep_their_bytes() -> None:
    seen: list[bytes] = []
    behind = Behind(lambda data: seen.append(bytes(data)))
    wanted = [bytes([n]) * (n + 1) for n in range(200)]
    for data in wanted:
        give(behind, data)
    behind.settle()
    assert seen == wanted
    behind.close()


def test_a_block_that_is_worked_on_is_not_lent() -> None:
    go, kept = threading.Event(), []

    def work(data: memoryview) -> None:
        before = bytes(data)
        assert go.wait(DEADLINE_S)
        kept.append(bytes(data) == before)

    behind = Behind(work)
    for n in range(BLOCKS):
        give(behind, bytes([n]) * 10)
    more = threading.Thread(target=give, args=(behind, b"x" * 10))
    more.start()
    assert more.is_alive(), "every block is in use"
    go.set()
    more.join(DEADLINE_S)
    behind.settle()
    assert kept == [True] * (BLOCKS + 1)
    behind.close()


def test_what_goes_wrong_comes_up_once_and_nothing_is_worked_on_after_it() -> None:
    seen: list[bytes] = []

    def work(data: memoryview) -> None:
        if data[0] == 2:
            raise Trouble
        seen.append(bytes(data))

    behind = Behind(work)
    for n in range(BLOCKS):
        give(behind, bytes([n]))
    with pytest.raises(Trouble):
        behind.settle()
    behind.settle()
    assert seen == [b"\x00", b"\x01"]
    behind.close()


def test_blocks_that_waited_when_something_went_wrong_are_not_worked_on_after_it_was_told() -> None:
    """Else there would be a gap in what was hashed."""
    seen: list[bytes] = []
    told = threading.Event()

    def work(data: memoryview) -> None:
        if data[0] == 0:
            raise Trouble
        seen.append(bytes(data))

    class Slow(queue.SimpleQueue[memoryview]):
        """The thread goes on to the next block only when the error was told, if it is told that early."""

        def put(self, item: memoryview, block: bool = True, timeout: float | None = None) -> None:
            super().put(item)
            told.wait(0.5)

    behind = Behind(work)
    slow = Slow()
    for _ in range(BLOCKS):
        queue.SimpleQueue.put(slow, behind._free.get())
    behind._free = slow
    for n in range(BLOCKS):
        give(behind, bytes([n]))
    with pytest.raises(Trouble):
        behind.buffer()
    told.set()
    behind.settle()
    assert seen == []
    behind.close()


def test_a_block_that_was_not_handed_over_is_lent_again_and_foreign_bytes_are_refused() -> None:
    behind = Behind(lambda data: None)
    assert behind.buffer() is behind.buffer()
    assert not behind.hand_over(memoryview(b"foreign"))
    behind.close()


class Interrupt(BaseException):
    """As Ctrl-C is raised: between any two steps of who fills the blocks."""


def interrupted_at(line: int, act: Callable[[], object]) -> bool:
    """Run `act` with an exception in front of the n-th line that it comes to in the module; False: it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("behind.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("what", ["give", "settle"])
def test_wherever_the_filling_side_is_interrupted_nobody_waits_for_ever(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    for line in range(1, 50):
        behind = Behind(lambda data: None)
        for n in range(2 * BLOCKS):
            give(behind, bytes([n]))
        act = partial(give, behind, b"x") if what == "give" else behind.settle
        hit = [interrupted_at(line, act) for _ in range(3 * BLOCKS)]
        after = threading.Thread(target=_go_on, args=(behind,), daemon=True)
        after.start()
        after.join(DEADLINE_S)
        assert not after.is_alive(), f"interrupted in front of line {line}"
        if not any(hit):
            return
    raise AssertionError("the module has grown")


def _go_on(behind: Behind) -> None:
    behind.settle()
    for n in range(2 * BLOCKS):
        give(behind, bytes([n]))
    behind.settle()
    behind.close()


def test_no_block_is_lent_while_it_is_worked_on_wherever_the_filling_side_was_interrupted() -> None:
    for line in range(1, 50):
        go = threading.Event()
        kept: list[bool] = []

        def work(data: memoryview, go: threading.Event = go, kept: list[bool] = kept) -> None:
            before = bytes(data)
            go.wait(DEADLINE_S)
            kept.append(bytes(data) == before)

        behind = Behind(work)
        hit = interrupted_at(line, partial(give, behind, b"first"))
        behind.buffer()[:5] = b"other"
        go.set()
        behind.settle()
        assert all(kept), f"interrupted in front of line {line}"
        behind.close()
        if not hit:
            return
    raise AssertionError("the module has grown")


# ── when nothing comes ────────────────────────────────────────────────────────────────────────────


def test_a_quiet_moment_after_work_is_told_once() -> None:
    told = queue.SimpleQueue[bool]()
    behind = Behind(lambda data: None, lambda: told.put(True))
    for _ in range(2):
        give(behind, b"x")
        assert told.get(timeout=DEADLINE_S)
    behind.close()
    assert told.empty()


def test_who_has_settled_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done in a quiet moment is done to the same things that are looked at once all is settled."""
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    settled, met = threading.Event(), list[bool]()
    behind = Behind(lambda data: None, lambda: met.append(settled.wait(0.05)))
    for _ in range(20):
        settled.clear()
        give(behind, b"x")
        behind.settle()
        settled.set()
    behind.close()
    assert True not in met


def test_what_goes_wrong_in_a_quiet_moment_comes_up_at_the_next_call() -> None:
    told = threading.Event()

    def fail() -> None:
        told.set()
        raise Trouble

    behind = Behind(lambda data: None, fail)
    give(behind, b"x")
    assert told.wait(DEADLINE_S)
    with pytest.raises(Trouble):
        behind.settle()
    behind.close()
