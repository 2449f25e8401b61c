"""What a process asked of the kernel, in order, as strace(1) saw it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import absent

CALLS = (
    "openat,mkdir,mkdirat,fsync,fdatasync,link,linkat,rename,renameat,renameat2,pwrite64,pwritev,write,ftruncate,fchmod"
)
_TIMEOUT_S = 100
_LINE = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)\Z")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)", re.DOTALL)
_UNFINISHED = re.compile(r"(?P<begin>.*) <unfinished \.\.\.>\Z")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(?P<end>.*)\Z")
_HANDLE = re.compile(r"(?:-?\d+|AT_FDCWD)<(?P<path>[^>]*)>")
_QUOTED = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Call:
    """One call that succeeded; it began after line `began` of the trace and was done at line `ended`."""

    began: int
    ended: int
    name: str
    arguments: str

    @property
    def handle(self) -> str:
        """The path behind its first file descriptor."""
        match = _HANDLE.search(self.arguments)
        return match["path"] if match else ""

    @property
    def target(self) -> str:
        """The path that its last name means, made whole with the folder it is relative to."""
        name = [match["text"] for match in _QUOTED.finditer(self.arguments)][-1]
        folders = [match["path"] for match in _HANDLE.finditer(self.arguments)]
        return name if name.startswith("/") or not folders else os.path.join(folders[-1], name)


def need() -> None:
    """Pass the test over where nobody may trace a process. A machine that does not allow it is nobody's fault."""
    if shutil.which("strace") is None:
        absent("no strace to look over a process's shoulder with: install the Debian package strace")
    if subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody trace a process")


def traced(program: str, arguments: list[str], trace: Path, cwd: Path) -> list[Call]:
    """Run a piece of Python to its end; answer the calls that succeeded, by the line where they were done."""
    watch = ["strace", "-f", "-y", "-s", "64", "-e", f"trace={CALLS}", "-o", str(trace)]
    done = subprocess.run(
        [*watch, sys.executable, "-c", program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return list(_calls(trace.read_text(errors="replace")))


def _calls(text: str) -> Iterator[Call]:
    open_ones: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        pid, rest, began = match["pid"], match["rest"], number
        if unfinished := _UNFINISHED.match(rest):
            open_ones[pid] = (number, unfinished["begin"])
            continue
        if resumed := _RESUMED.match(rest):
            began, begin = open_ones.pop(pid)
            rest = begin + resumed["end"]
        call = _CALL.match(rest)
        if call is not None and int(call["result"]) >= 0:
            yield Call(began, number, call["name"], call["arguments"])
