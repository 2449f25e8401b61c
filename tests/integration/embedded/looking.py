"""Looking at processes and servers from outside."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import redis

from dlpipe.embedded.process import birth
from dlpipe.embedded.redis import socket_path


def alive(pid: int) -> bool:
    return birth(pid) is not None


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def client(home: Path) -> contextlib.closing[redis.Redis]:
    return contextlib.closing(redis.Redis(unix_socket_path=str(socket_path(home))))
