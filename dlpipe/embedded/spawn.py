"""Starts processes from one thread that lasts as long as this process does.

A tethered child dies with the thread that forked it (see tether), and nobody should have to know which thread
happens to call `ensure` or `poll`.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from dlpipe.embedded.tether import tethered

_T = TypeVar("_T")

_guard = threading.Lock()
_calls: queue.SimpleQueue[Callable[[], None]] | None = None


def start_tethered(
    argv: Sequence[str],
    *,
    log: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    keep_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start argv, which dies with this process, in a session of its own so that Ctrl-C does not reach it."""
    command = tethered(argv)
    return in_lasting_thread(
        lambda: subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, pass_fds=tuple(keep_fds),
        )
    )  # fmt: skip


def in_lasting_thread(call: Callable[[], _T]) -> _T:
    """Run call in the thread that lasts, and hand back what it returns or raises."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    _queue().put(run)
    return answer.result()


def _queue() -> queue.SimpleQueue[Callable[[], None]]:
    global _calls  # noqa: PLW0603 - one spawning thread per process
    with _guard:
        if _calls is None:
            _calls = queue.SimpleQueue()
            # A daemon, and not a pool: pools end their threads before atexit handlers run, and with them the
            # children which those handlers want to stop politely.
            threading.Thread(target=_serve, args=(_calls,), name="dlpipe-spawn", daemon=True).start()
        return _calls


def _serve(calls: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()


def _forget() -> None:
    # The thread does not exist in a forked child, and the lock may have been held at that moment.
    global _guard, _calls
    _guard, _calls = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
