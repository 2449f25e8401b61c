"""The command's side of the ready process: find one, hand the command over, pass signals on, end like it (ADR 40).

It is what the command does first, so it imports little. Whatever is in doubt goes the ordinary way: None is said, and
nothing has begun.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import sys

from dlpipe.embedded import errand
from dlpipe.embedded.place import socket_in

ANSWER_S = 1.0
EXIT_LOST = 1
_ORDINARY = frozenset({"up", "down"})
"""They start and end the stack, and the ready process with it."""


def carried_out(words: list[str]) -> int | None:
    """Let a ready process carry the command out, and end as it did; None when there is none that may."""
    if not sys.platform.startswith("linux") or not words or words[0].startswith("-") or words[0] in _ORDINARY:
        return None
    try:
        place = socket_in(data_folder(), errand.SOCKET_NAME)
        if not _private(os.path.dirname(place)) or not os.path.exists(place) or _in_background():
            return None
        status = errand.kernel_status(os.getpid())
        signals = errand.Signals(status)
        line = socket.socket(socket.AF_UNIX)
        woken, wake = socket.socketpair()
    except (OSError, ValueError, KeyError, RuntimeError):
        return None
    with line, woken, wake:
        return None if signals.blocked else _over(line, place, signals, woken, wake)


def data_folder() -> str:
    """Where settings say that the data is, well enough to look for a running stack: the settings are read later.

    OSError or ValueError where that cannot be told.
    """
    named = os.environ.get("DLPIPE_HOME")
    if not named:
        named = "dlpipe-data"
        files = [os.environ.get("DLPIPE_CONFIG") or "", os.path.join(named, "dlpipe.toml"), "dlpipe.toml"]
        file = files[0] or next((one for one in files if os.path.isfile(one)), None)
        if file is not None:
            import tomllib

            with open(file, "rb") as stream:
                named = tomllib.load(stream).get("home") or named
    return os.path.abspath(os.path.expanduser(named))


def _private(folder: str) -> bool:
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _in_background() -> bool:
    # There it is stopped when it asks the terminal for something, which only happens to who belongs to that.
    try:
        return any(os.isatty(fd) and os.tcgetpgrp(fd) != os.getpgrp() for fd in (0, 1, 2))
    except OSError:  # a terminal, but not the one that we belong to
        return False


def _handed_on(fd: int) -> bool:
    """Whoever started us left it open for us; what Python opens itself is not inherited."""
    try:
        return os.get_inheritable(fd)
    except OSError:  # the one that listed them
        return False


def _over(
    line: socket.socket, place: str, signals: errand.Signals, woken: socket.socket, wake: socket.socket
) -> int | None:
    # A signal has to find either us before the command has begun, or somebody to whom it is passed on.
    passed_on = [number for number in errand.PASSED_ON if number not in signals.ignored]
    held = (*passed_on, signal.SIGTSTP, signal.SIGCONT)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        if not _begun(line, place, signals):
            return None
        # Python looks at signals between its own steps: one that comes just before a wait would not end the wait.
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in passed_on:
            signal.signal(number, lambda received, _frame: _tell(line, received))
        if signal.SIGTSTP not in signals.ignored:
            signal.signal(signal.SIGTSTP, lambda _received, _frame: _rest(line))
        signal.signal(signal.SIGCONT, lambda received, _frame: _tell(line, received))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    status = _ended(line, woken)
    signal.set_wakeup_fd(-1)
    if status < 0:
        _end_by(-status)
    return status


def _begun(line: socket.socket, place: str, signals: errand.Signals) -> bool:
    """Hand it over. Before GO nothing has been done, so every failure is a no; after it none is."""
    try:
        line.settimeout(ANSWER_S)
        line.connect(place)
        if peer(line)[1] != os.geteuid():
            return False
        fds = sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if _handed_on(fd))
        if len(fds) >= errand.MOST_FDS or max(fds, default=0) > errand.HIGHEST_FD:
            return False
        data = errand.own_errand(errand.marks(), signals, fds).packed()
        # What nobody takes from the line stays open in it: a pipe of ours would not end when we do.
        if line.recv(1) != errand.HELLO:
            return False
        here = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            socket.send_fds(line, [errand.HELLO], [here, *fds])
        finally:
            os.close(here)
        line.sendall(len(data).to_bytes(errand.LENGTH_BYTES, "big") + data)
        if line.recv(1) != errand.READY:
            return False
        line.settimeout(None)
        line.sendall(errand.GO)
    except (OSError, OverflowError):
        return False
    return True


def peer(line: socket.socket) -> tuple[int, int]:
    """Which process is at the other end, and whose; the kernel says so."""
    said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, errand.CREDENTIALS.size)
    pid, uid, _ = errand.CREDENTIALS.unpack(said)
    return pid, uid


def _tell(line: socket.socket, number: int) -> None:
    try:
        line.send(bytes([number]))
    except OSError:  # it has ended meanwhile
        return


def _rest(line: socket.socket) -> None:
    """Ctrl-Z: let the command stop, and stop as well. SIGCONT wakes both."""
    _tell(line, signal.SIGTSTP)
    os.kill(os.getpid(), signal.SIGSTOP)


def _ended(line: socket.socket, woken: socket.socket) -> int:
    """How it ended, once it has; signals are passed on meanwhile."""
    said = b""
    try:
        while len(said) < errand.STATUS_BYTES:
            heard, _, _ = select.select([line, woken], [], [])
            if woken in heard:
                woken.recv(64)
            if line in heard:
                piece = line.recv(errand.STATUS_BYTES - len(said))
                if not piece:
                    break
                said += piece
    except OSError:
        said = b""
    if len(said) < errand.STATUS_BYTES:
        sys.stderr.write(
            "error: the process that carried this command out was ended, so how it went is not known [ready_lost]\n"
            "  What was done by then stands; repeat the command.\n"
        )
        return EXIT_LOST
    return int.from_bytes(said, "big", signed=True)


def _end_by(number: int) -> None:
    """End like the command did, so that a shell sees what it would have seen."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
