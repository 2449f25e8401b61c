"""The ready process: it has everything imported, and forks a process for each command that asks it to (ADR 40).

It holds no engine, connection or thread that a child could inherit, and knows no settings: those are the command's.
Each command has a keeper, forked as well, which checks it, passes signals on, and reports how it ended; so a command
goes on when the ready process ends, and nothing that a client does or leaves undone holds up another one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dlpipe.embedded import errand
from dlpipe.embedded.ask import peer
from dlpipe.embedded.errand import Errand
from dlpipe.embedded.files import own_dir_in_shared_place, private_dir
from dlpipe.embedded.place import socket_in
from dlpipe.embedded.tether import die_with_parent

HANDSHAKE_S = 5.0
ENDING_S = 20.0
"""How long a command may take to end whose client is gone."""
_BACKLOG = 64
_FAILED = 70
_FLUSH_FAILED = 120  # what Python ends with then
_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Python itself ignores them."""
_SENT = {int(number): number for number in errand.PASSED_ON} | {
    # A process that no terminal controls is not stopped by SIGTSTP.
    int(signal.SIGTSTP): signal.SIGSTOP,
    int(signal.SIGCONT): signal.SIGCONT,
}


def serve(home: Path, run: Callable[[], object]) -> NoReturn:
    """Carry out commands, each by calling `run` in a child, until SIGTERM. One per data directory: the newest."""
    status = errand.kernel_status(os.getpid())
    if b"\nThreads:\t1\n" not in status:
        raise RuntimeError("a process with threads must not be forked: what one of them holds would be held for good")
    marks, rights = errand.marks(), errand.rights(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    # What is there now lives as long as we do: not to be looked at again keeps its pages shared with children.
    gc.collect()
    gc.freeze()
    place, own = Path(socket_in(str(home), errand.SOCKET_NAME)), os.getpid()
    sys.stdout.flush()  # what is left in it, a child would say once more
    listener = _listen(place, home)
    mine = place.stat().st_ino
    try:
        while True:
            line, _ = listener.accept()
            _attend_in_child(line, listener, [*marks, *rights], run)
            line.close()
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.getpid() == own and place.stat().st_ino == mine:
                place.unlink()


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _listen(place: Path, home: Path) -> socket.socket:
    if place.parent == Path(home).resolve() / "run":
        private_dir(place.parent)
    else:
        own_dir_in_shared_place(place.parent)
    draft = place.with_name(f"{place.name}~")
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(draft))
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    draft.replace(place)  # who finds it can connect
    return listener


def _attend_in_child(
    line: socket.socket, listener: socket.socket, marks: Sequence[str], run: Callable[[], object]
) -> None:
    try:
        if os.fork():
            return
    except OSError:  # no room for a further process: the client does it itself
        return
    try:
        os.setsid()  # Ctrl-C, and the end of the stack's own group, are none of its business
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # it ends with the command
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        _attend(line, marks, run)
    except OSError as error:
        _say(f"a client went away, or what it asked for cannot be: {error}")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(_FAILED)


def _say(text: str) -> None:
    """On standard error: in our own log, but for the command."""
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _attend(line: socket.socket, marks: Sequence[str], run: Callable[[], object]) -> None:
    """Check what is asked for, have it carried out, and report how it ended. Until GO everything may fail."""
    line.settimeout(HANDSHAKE_S)
    client, uid = peer(line)
    if uid != os.geteuid():
        return
    theirs = errand.rights(client)
    line.sendall(errand.HELLO)
    asked = _received(line)
    if asked is None:
        return
    wanted, fds = asked
    other = sorted({mark.partition(":")[0] for mark in {*wanted.marks, *theirs} ^ {*marks}})
    if other:
        _say(f"a command was left to its own process, as it differs in: {', '.join(other)}")
        return
    line = _surround(wanted, fds, line)
    line.sendall(errand.READY)
    if line.recv(1) == errand.GO:
        line.settimeout(None)
        _keep(line, wanted, run)


def _received(line: socket.socket) -> tuple[Errand, list[int]] | None:
    said, fds, flags, _ = socket.recv_fds(line, 1, errand.MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    if said != errand.HELLO:
        return None
    length = int.from_bytes(exactly(line, errand.LENGTH_BYTES), "big")
    if flags & socket.MSG_CTRUNC or length > errand.MOST_BYTES:
        return None
    wanted = Errand.unpacked(exactly(line, length))
    return (wanted, fds) if len(fds) == len(wanted.fds) + 1 else None


def exactly(line: socket.socket, count: int) -> bytes:
    """So many bytes, or ConnectionResetError."""
    found = bytearray()
    while len(found) < count:
        piece = line.recv(min(count - len(found), 1 << 16))
        if not piece:
            raise ConnectionResetError("the client went away")
        found += piece
    return bytes(found)


def _surround(wanted: Errand, fds: Sequence[int], line: socket.socket) -> socket.socket:
    """Take on what children inherit. Returns the line, which has moved out of the way of the client's descriptors."""
    here, *handed = fds
    os.fchdir(here)
    os.close(here)
    os.umask(int(wanted.umask[0]))
    ours = set(errand.limits())
    for limit in wanted.limits:
        if limit not in ours:
            kind, soft, hard = map(int, limit.split(" "))
            try:
                resource.setrlimit(kind, (soft, hard))
            except ValueError as error:
                raise PermissionError(f"limit {limit}: {error}") from None
    sys.stderr = None  # its descriptor becomes the client's, where we have nothing to say
    numbers = [int(number) for number in wanted.fds]
    above = max([2, *numbers]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in handed]
    line, before = socket.socket(fileno=fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, above)), line
    line.settimeout(before.gettimeout())
    before.close()
    for fd in handed:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for number in {0, 1, 2}.difference(numbers):
        os.close(number)
    return line


def _keep(line: socket.socket, wanted: Errand, run: Callable[[], object]) -> None:
    """Fork the command; pass signals on to it until it ends, and say how it did."""
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT.values())
    keeper = os.getpid()
    command = os.fork()
    if command == 0:
        signal.set_wakeup_fd(-1)
        for one in (line, ended, wake):
            one.close()
        _become(wanted, keeper, held, run)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    for number in map(int, wanted.fds):
        os.close(number)  # a pipe ends when the command closes it
    status = _watch(command, line, ended, _ctrl_c(wanted))
    with contextlib.suppress(OSError):  # nobody is there any more who wants to know
        line.sendall(status.to_bytes(errand.STATUS_BYTES, "big", signed=True))
    os._exit(0)


def _ctrl_c(wanted: Errand) -> signal.Signals:
    return signal.SIGTERM if str(int(signal.SIGINT)) in wanted.ignored else signal.SIGINT


def _watch(command: int, line: socket.socket, ended: socket.socket, interrupt: signal.Signals) -> int:
    """The command's exit status, or the signal that ended it as a negative number."""
    told_by: list[socket.socket] = [line, ended]
    deadline: float | None = None
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        heard, _, _ = select.select(told_by, [], [], left_s)
        if ended in heard:
            ended.recv(64)
        gone, status = os.waitpid(command, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        if line in heard:
            said = _heard(line)
            for number in said:
                if number in _SENT:
                    os.kill(command, _SENT[number])
            if not said:
                # The client was killed: what it would have been told by Ctrl-C is said now. A stopped one has to hear.
                told_by.remove(line)
                deadline = time.monotonic() + ENDING_S
                os.kill(command, interrupt)
                os.kill(command, signal.SIGCONT)
        elif deadline is not None and time.monotonic() >= deadline:
            os.kill(command, signal.SIGKILL)
            deadline = None


def _heard(line: socket.socket) -> bytes:
    try:
        return line.recv(64)
    except OSError:
        return b""


def _become(wanted: Errand, keeper: int, held: Collection[int], run: Callable[[], object]) -> NoReturn:
    """In the command's own process: be what the client is, and do it."""
    try:
        die_with_parent(int(_ctrl_c(wanted)))
        if os.getppid() == keeper:
            _behave(wanted.ignored)
            _speak(wanted)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            end(carry_out(run))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(_FAILED)


def _behave(ignored: Sequence[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in map(int, ignored):
        if one not in _BY_PYTHON:
            signal.signal(one, signal.SIG_IGN)


def _speak(wanted: Errand) -> None:
    """The client's words, variables, import path and streams in place of ours."""
    os.environ.clear()
    for variable in wanted.environ:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    time.tzset()
    sys.argv, sys.path = wanted.argv, wanted.path
    importlib.invalidate_caches()
    stdin, stdout, stderr = (_stream(fd, form) for fd, form in enumerate(wanted.streams))
    # None is what Python itself has there for a descriptor that is closed.
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc]


def _stream(fd: int, form: str) -> io.TextIOWrapper | None:
    """As Python makes it at its start."""
    if not form:
        return None
    encoding, errors, by_lines, at_once = form.split(" ")
    raw = io.FileIO(fd, "rb" if fd == 0 else "wb", closefd=False)
    kept: io.FileIO | io.BufferedReader | io.BufferedWriter
    if fd == 0:
        kept = io.BufferedReader(raw)
    else:
        kept = raw if at_once == "True" else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        kept, encoding, errors, newline="\n", line_buffering=by_lines == "True", write_through=at_once == "True"
    )


def carry_out(run: Callable[[], object]) -> int:
    """Do it, and all that an interpreter does at its end, less taking itself apart; what `end` is to be told."""
    try:
        run()
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        # A shell is to see that it was interrupted, as Python does it.
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            status = _FLUSH_FAILED
    return status


def end(status: int) -> NoReturn:
    """With that exit status, or by SIGINT: at once, as all there is goes with the process anyway."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _say(str(code))
    return 1
