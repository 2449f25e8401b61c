"""Runs many commands quickly: one process imports what they need, and each command is a fork of it.

What is imported beforehand is what the ready process of a stack imports (ADR 40): nothing that is made from settings.
Run as a module it is that process: each line of its input is a request as JSON, answered by `[code, output, errors]`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from dlpipe.embedded.ready import carry_out, end
from tests.forks import REPOSITORY, become, read_at_start

DEADLINE_S = 90


class Walker:
    """Carries out one command after the other."""

    def __init__(self) -> None:
        self._surroundings = _without_path(os.environ)
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.walk"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def knows(self, env: Mapping[str, str]) -> bool:
        """Would an interpreter that is started in it be as ours is?"""
        return _without_path(env) == self._surroundings

    def run(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str | None = None
    ) -> tuple[int, str, str]:
        """Its exit status, or the signal that ended it, negative; what it wrote to either stream."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps([list(words), dict(env), str(cwd), stdin]) + "\n")
            self._process.stdin.flush()
            code, out, err = json.loads(self._process.stdout.readline())
        return code, out, err


@cache
def walker() -> Walker:
    """One for all tests of this process, which ends when its input does."""
    return Walker()


def _without_path(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in read_at_start(env).items() if name != "PYTHONPATH"}


def _carry_out(words: list[str], env: dict[str, str], cwd: str, stdin: str | None) -> tuple[int, str, str]:
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin or "")
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            _be(words, env, cwd, given.fileno(), out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


def _be(words: list[str], env: dict[str, str], cwd: str, *streams: int) -> None:
    try:
        os.setsid()
        signal.alarm(DEADLINE_S)
        become(env, cwd, dict(enumerate(streams)))
        from dlpipe.cli import main

        end(carry_out(lambda: main(words)))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(99)


if __name__ == "__main__":
    import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401 - what a command imports when it is told of PostgreSQL

    from dlpipe.cli.ready import load

    load()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        answer = json.dumps(_carry_out(*json.loads(line)))
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
