"""The command as a user has it: a subprocess, a data directory of its own, a server on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlpipe.embedded.process import birth
from tests.e2e.walk import walker
from tests.servers import wait_until
from tests.webserver import WebServer

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Command:
    """`dlpipe` on one data directory."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    cold: bool = False
    """By an interpreter of its own, each time."""

    def environment(self, **more: str) -> dict[str, str]:
        # Nothing of the developer's own settings: only what the test says.
        base = {name: value for name, value in os.environ.items() if not name.startswith("DLPIPE_")}
        own = {"DLPIPE_HOME": str(self.home), "DLPIPE_ALLOW_PRIVATE": "1", "PYTHONPATH": str(REPOSITORY)}
        return {**base, **own, **self.env, **more}

    def start(self, *words: str, stdin: str | None = None, **more: str) -> subprocess.Popen[str]:
        """Start the command in a process group of its own."""
        child = subprocess.Popen(
            [sys.executable, "-m", "dlpipe", *words],
            env=self.environment(**more),
            cwd=self.home.parent,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(child)
        return child

    def run(self, *words: str, stdin: str | None = None, **more: str) -> Ran:
        """Start it and wait for its end. What starts processes of its own is itself started as users do it."""
        env = self.environment(**more)
        if not self.cold and words[0] not in {"fetch", "up"} and walker().knows(env):
            return Ran(*walker().run(words, env, self.home.parent, stdin))
        child = self.start(*words, stdin=stdin, **more)
        out, err = child.communicate(stdin, timeout=90)
        return Ran(child.returncode, out, err)

    def services(self) -> dict[str, int]:
        """The pids of the running stack, its Redis with them."""
        info = json.loads((self.home / "run" / "stack.json").read_text())
        pids = dict(info["services"])
        pids["owner"] = info["pid"]
        return {name: int(pid) for name, pid in pids.items()}

    def processes(self) -> list[int]:
        """Every living process that works on this data directory."""
        mine, found = os.fsencode(str(self.home)), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if mine in words and birth(int(entry.name)) is not None:
                    found.append(int(entry.name))
        return found

    def staged_bytes(self) -> int:
        found = 0
        for part in self.home.glob("store/.staging/*/*.part"):
            with suppress(FileNotFoundError):  # it was begun anew, or has its final name by now
                found += part.stat().st_size
        return found

    def all_gone(self) -> bool:
        return not self.processes()

    def end(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.communicate()
        wait_until(self.all_gone, "the processes of the data directory end with their owner")


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (only,) = self.records
        return only


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path / "data")
    yield made
    made.end()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server
