"""Blocks go to another thread in their order, and come back only when it is done with them."""

from __future__ import annotations

import queue
import threading

import pytest

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
    behind._done = Slow()
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
