"""A line of network that can break: a port on loopback, and behind it a server's unix socket, or another port.

It runs as a process of its own, so that a test which is busy does not slow the line down. Run as a module it is that
process: `python -m tests.link SOCKET|PORT HOST`, told what to do on its standard input, one word a line.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dlpipe.embedded.tether import tethered

_PIECE = 65_536
_REPOSITORY = Path(__file__).resolve().parents[1]


class Link:
    """The way to a server. `cut` breaks all connections and refuses new ones; `stall` lets nothing through."""

    def __init__(self, behind: str, host: str = "127.0.0.1") -> None:
        argv = [sys.executable, "-m", "tests.link", behind, host]
        self._child = subprocess.Popen(
            tethered(argv), cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._child.pid
        self.port = int(self._read())

    def cut(self) -> None:
        self._say("cut")

    def stall(self) -> None:
        self._say("stall")

    def mend(self) -> None:
        self._say("mend")

    def _say(self, word: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        if self._read() != word:
            raise RuntimeError(f"the link did not {word}")

    def _read(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def close(self) -> None:
        self._child.kill()
        self._child.wait(10)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Line:
    """The process behind a Link."""

    def __init__(self, behind: str, host: str) -> None:
        self._behind = behind
        self._listener = socket.create_server((host, 0), backlog=256)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = True
        self._flows = threading.Event()
        self._flows.set()

    def serve(self) -> None:
        _start(self._accept)
        _tell(str(self._listener.getsockname()[1]))
        for line in sys.stdin:
            word = line.strip()
            if word == "stall":
                self._flows.clear()
            elif word == "cut":
                self._cut()
            else:
                self._whole = True
                self._flows.set()
            _tell(word)

    def _cut(self) -> None:
        with self._lock:
            self._whole = False
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._flows.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        port = int(self._behind) if self._behind.isdigit() else None
        server = socket.socket(socket.AF_UNIX if port is None else socket.AF_INET)
        with client, server:
            with suppress(OSError):
                with self._lock:
                    if not self._whole:
                        return
                    server.connect(self._behind if port is None else ("127.0.0.1", port))
                    self._open |= {client, server}
                back = _start(self._copy, server, client)
                self._copy(client, server)
                back.join()
            with self._lock:
                self._open -= {client, server}

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._flows.wait()
                target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _start(what: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=what, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the owner says when it is over
    try:
        _Line(sys.argv[1], sys.argv[2]).serve()
    finally:
        os._exit(0)
