"""A data directory, its Redis, and processes that own things and can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dlpipe.embedded.redis import PrivateRedis


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="dlp-", dir="/tmp") as made:
        yield Path(made).resolve() / "data"


@pytest.fixture
def redis(home: Path) -> Iterator[PrivateRedis]:
    made = PrivateRedis(home)
    yield made
    made.stop()


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", script, *map(str, words)]
        path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path}
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
        # Not `communicate`: a child that outlived it, which is what these tests look for, holds the other end.
        for pipe in (each.stdin, each.stdout):
            assert pipe is not None
            pipe.close()
