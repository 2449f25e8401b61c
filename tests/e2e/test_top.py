"""`dlpipe top` on a terminal, beside a stack that is at work."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with a command on it: what it has printed, a size that can change, and keys."""

    def __init__(self, command: Command, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.size(80, 24)
        self.child = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "dlpipe", *words],
            env={**command.environment(), "TERM": "xterm"},
            cwd=command.home.parent,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.printed = ""

    def size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def text(self) -> str:
        """Everything printed so far, without what moves the cursor."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                more = os.read(self._master, 1 << 16)
            except OSError:
                break
            if not more:
                break
            self.printed += more.decode("utf-8", "replace")
        return _MOVES.sub("\n", self.printed)

    def forget(self) -> None:
        self.text()
        self.printed = ""

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._master)


@contextmanager
def showing(command: Command, *words: str) -> Iterator[Terminal]:
    made = Terminal(command, *words)
    try:
        yield made
    finally:
        made.close()


def test_a_running_stack_is_watched_outlived_and_left_with_ctrl_c(command: Command, web: WebServer) -> None:
    stack = command.start("up")
    slow = web.put("/slow.bin?token=hidden", b"x" * 30_000_000, bytes_per_s=250_000)
    wait_until((command.home / "run" / "stack.json").exists, "the stack to run", 60)
    planned = command.run("plan", slow, f"{web.url}/gone")
    assert planned.code == 0, planned.err
    with showing(command, "top") as screen:
        wait_until(lambda: re.search(r"[0-9a-f]{8} stream +127", screen.text()), "the download to be shown", 60)
        wait_until(lambda: "KiB/s" in screen.text(), "its rate", 60)
        wait_until(lambda: "in flight; workers: " in screen.text() and "http_404" in screen.text(), "all of it")
        assert "hidden" not in screen.text()
        screen.forget()
        screen.size(40, 10)
        wait_until(lambda: "running (1)" in screen.text(), "a small terminal")
        screen.forget()
        stack.send_signal(signal.SIGINT)
        wait_until(lambda: "! nothing runs here" in screen.text(), "it to say that the stack went away", 60)
        assert screen.child.poll() is None
        screen.press(b"\x03")
        wait_until(lambda: screen.child.poll() is not None, "Ctrl-C to end it")
        assert screen.child.returncode == 130
        assert "Traceback" not in screen.text()
        assert "\x1b[?1049l" in screen.printed  # the terminal is given back
    stack.wait(60)


def test_programs_are_given_one_object_or_one_a_look(command: Command, web: WebServer) -> None:
    command.run("fetch", web.put("/a.bin", b"x" * 1000), "--json")
    once = command.run("top", "--json")
    assert (once.code, once.record["counts"]["completed"], once.record["finished_bytes_last_minute"]) == (0, 1, 1000)
    assert once.record["troubles"] == ["nothing runs here: `dlpipe up` starts workers and a scheduler"]
    text = command.run("top")
    assert (text.code, "completed 1" in text.out, "\x1b" in text.out) == (0, True, False)
    assert command.run("top", "--once", "--every", "1").code == 2
    lines = command.start("top", "--json", "--every", "0.2")
    assert lines.stdout is not None
    # Compared as moments: at a full second there is no fraction, and "Z" comes behind ".".
    seen = [datetime.fromisoformat(json.loads(lines.stdout.readline())["at"]) for _ in range(3)]
    assert seen == sorted(set(seen))
    began = time.monotonic()
    lines.send_signal(signal.SIGINT)
    _, said = lines.communicate(timeout=30)
    assert (lines.returncode, "Traceback" in said, time.monotonic() - began < 20) == (130, False, True)
