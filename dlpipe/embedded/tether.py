"""Runs a command that dies with the process that wanted it, even when that one is killed with -9.

`python -I -S tether.py [--signal N] [--watch] OWNER_PID -- argv…`: asks the kernel for a signal on the
parent's death, looks whether the parent is still the owner, and becomes argv. Where the kernel has no such
request (macOS), and with --watch, it stays as the parent of argv and looks out for the owner itself.
It needs the standard library only, since it runs without site-packages.

The kernel ties the signal to the THREAD that forked the child, not to its process: a child started from a
thread that ends dies with that thread. Start tethered commands through `spawn.in_lasting_thread`. The request
is also forgotten when the command changes its user id; the command must not be setuid.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.1
_USAGE = 64
_CANNOT_RUN = 127
_OWNER_GONE = 125
_RELAYED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def tethered(argv: Sequence[str], *, death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Build the command line that runs argv until it ends or this process does."""
    # -I keeps this directory off sys.path: its redis.py would hide the library of that name.
    tether = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*tether, "--signal", str(int(death_signal)), str(os.getpid()), "--", *argv]


def main(arguments: Sequence[str]) -> NoReturn:
    words, death_signal, watch = list(arguments), int(signal.SIGKILL), False
    try:
        while words[0].startswith("--"):
            option = words.pop(0)
            if option == "--signal":
                death_signal = int(words.pop(0))
            elif option == "--watch":
                watch = True
            else:
                raise ValueError(option)
        owner, dashes, argv = int(words[0]), words[1], words[2:]
        if dashes != "--" or not argv:
            raise ValueError(dashes)
    except (IndexError, ValueError):
        sys.stderr.write("usage: tether.py [--signal N] [--watch] OWNER_PID -- argv...\n")
        sys.exit(_USAGE)
    tied = not watch and die_with_parent(death_signal)
    # Asked after the request is in place: an owner that died before it would never be noticed.
    if os.getppid() != owner:
        os._exit(_OWNER_GONE)
    if tied:
        _become(argv)
    _watch(owner, death_signal, argv)


def die_with_parent(death_signal: int = int(signal.SIGKILL)) -> bool:
    """Ask the kernel for the signal; False where there is no such thing (macOS, the BSDs)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def _become(argv: Sequence[str]) -> NoReturn:
    # Ignored and blocked signals outlive exec. Python ignores two on its own, and a thread that blocks
    # signals hands that on: the command would neither end on a closed pipe nor hear SIGTERM.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 - becoming the command is the point
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]!r}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_CANNOT_RUN)


def _watch(owner: int, death_signal: int, argv: Sequence[str]) -> NoReturn:
    """Stay as the parent of the command, pass signals on to it, and kill it when the owner has gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _RELAYED)
    child = os.fork()
    if child == 0:
        _become(argv)
    for number in _RELAYED:
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    told = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end_like(os.waitstatus_to_exitcode(status))
        if not told and os.getppid() != owner:
            os.kill(child, death_signal)
            told = True
        time.sleep(_LOOK_S)


def _end_like(exit_code: int) -> NoReturn:
    if exit_code < 0:
        if -exit_code != signal.SIGKILL:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(abs(exit_code))


if __name__ == "__main__":
    main(sys.argv[1:])
