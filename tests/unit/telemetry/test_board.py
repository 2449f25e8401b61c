"""The board: what forked processes count together, and what is left of those that are killed (ADR 30)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from dlpipe.telemetry.board import ENTRIES, NAME_BYTES, Board
from tests.servers import wait_until


def in_child(work: Callable[[], object]) -> int:
    """Fork; the child does its work and waits to be ended."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # one that is stuck must not outlive its test
        try:
            work()
            os.write(tell, b"done")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(told, 4) == b"done"
    os.close(told)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def board() -> Board:
    return Board(slots=4)


def test_what_children_count_is_added_up(board: Board) -> None:
    children = [in_child(partial(board.add, {"a": n, "b": 1})) for n in (1, 2)]
    board.add({"a": 10})
    try:
        assert board.read() == {"a": 13, "b": 2}
    finally:
        for child in children:
            end(child)


def test_a_killed_child_leaves_its_numbers_and_its_slot(board: Board) -> None:
    for _ in range(10):  # more children than slots, one after the other
        end(in_child(lambda: board.add({"a": 1})))
    assert board.read() == {"a": 10}


def test_a_stopped_child_holds_nobody_up(board: Board) -> None:
    stopped = in_child(lambda: board.add({"a": 1}))
    os.kill(stopped, signal.SIGSTOP)
    try:
        board.add({"a": 1})
        assert board.read() == {"a": 2}
    finally:
        end(stopped)


def test_a_child_does_not_count_in_its_parents_slot(board: Board) -> None:
    """Two writers of one number would lose counts."""
    board.add({"a": 1})
    child = in_child(lambda: board.add({"a": 1}))
    try:
        board.add({"a": 1})
        assert board.read() == {"a": 3}
        assert len([slot for slot in range(4) if board._entries(slot)]) == 2
    finally:
        end(child)


def test_a_child_forked_while_a_thread_counts_can_count(board: Board) -> None:
    with board._lock:
        end(in_child(lambda: board.add({"a": 1})))
    assert board.read() == {"a": 1}


def test_threads_count_one_after_the_other(board: Board) -> None:
    thread = threading.Thread(target=partial(board.add, {"a": 1}))
    with board._lock:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert board.read() == {}
    thread.join()
    assert board.read() == {"a": 1}


def test_without_a_free_slot_a_process_counts_nothing(board: Board) -> None:
    children = [in_child(lambda: board.add({"a": 1})) for _ in range(5)]
    try:
        assert board.read() == {"a": 4}
    finally:
        for child in children:
            end(child)


def test_names_beyond_the_bounds_are_not_counted(board: Board) -> None:
    board.add({"x" * (NAME_BYTES + 1): 1})
    board.add({f"n{n}": 1 for n in range(ENTRIES + 5)})
    assert len(board.read()) == ENTRIES


def test_a_name_that_was_begun_and_not_finished_is_written_over(board: Board) -> None:
    """Killed between the name and its length."""
    board.add({"a": 1})
    board._memory[128 + 10 : 128 + 13] = b"xyz"
    board.add({"b": 2})
    assert board.read() == {"a": 1, "b": 2}


def test_the_numbers_go_on_in_whoever_takes_the_slot_next() -> None:
    board = Board(slots=1)
    end(in_child(lambda: board.add({"a": 1.5, "b": 1})))
    second = in_child(lambda: board.add({"b": 1, "c": 1}))
    wait_until(lambda: board.read() == {"a": 1.5, "b": 2, "c": 1}, "the numbers")
    end(second)
