"""Who runs the stack, told from a lock and a file that may be old, wrong, or about another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.embedded import stack
from dlpipe.embedded.files import FileLock
from dlpipe.embedded.process import birth


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as it:
        yield it
        assert it.poll() is None, "an innocent process was ended"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileLock]:
    monkeypatch.setattr(stack, "_WRITING_S", 0.0)
    held = FileLock(tmp_path / "run" / "stack.lock")
    assert held.try_acquire()
    yield held
    held.release()


def write(home: Path, pid: int, born: str | None) -> None:
    info = {"pid": pid, "birth": born, "started_at": "2026-01-01T00:00:00+00:00", "services": {"beat": 5}}
    (home / "run" / "stack.json").write_text(json.dumps(info))


def test_live_owner_is_shown_with_its_services(tmp_path: Path, lock: FileLock) -> None:
    write(tmp_path, os.getpid(), birth(os.getpid()))
    info = stack.running(tmp_path)
    assert info is not None
    assert (info.pid, info.here, info.services) == (os.getpid(), True, {"beat": 5})


def test_file_without_a_held_lock_means_nothing(tmp_path: Path, lock: FileLock) -> None:
    write(tmp_path, os.getpid(), birth(os.getpid()))
    lock.release()
    assert stack.running(tmp_path) is None
    assert stack.ask_to_stop(tmp_path, 0.0)


def test_nothing_at_all_means_no_stack_and_creates_nothing(tmp_path: Path) -> None:
    assert stack.running(tmp_path / "home") is None
    assert stack.ask_to_stop(tmp_path / "home", 0.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("born", ["some-boot:1", "", None])
@pytest.mark.usefixtures("lock")
def test_pid_given_to_another_process_is_not_signalled(
    tmp_path: Path, bystander: subprocess.Popen[bytes], born: str | None
) -> None:
    write(tmp_path, bystander.pid, born)
    info = stack.running(tmp_path)
    assert info is not None
    assert not info.here
    assert not stack.ask_to_stop(tmp_path, 0.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', '{"pid": 1, "birth": "", "services": 3}'])
def test_unreadable_file_of_a_running_stack_falls_back_on_the_lock(
    tmp_path: Path, lock: FileLock, bystander: subprocess.Popen[bytes], text: str
) -> None:
    lock.path.write_text(str(bystander.pid))
    (tmp_path / "run" / "stack.json").write_text(text)
    info = stack.running(tmp_path)
    assert info is not None
    assert (info.pid, info.here) == (bystander.pid, False)
    assert not stack.ask_to_stop(tmp_path, 0.0)


def test_birth_is_stable_for_one_process_and_differs_between_two(bystander: subprocess.Popen[bytes]) -> None:
    assert birth(os.getpid()) == birth(os.getpid())
    assert birth(bystander.pid) is not None
    assert birth(bystander.pid) != birth(os.getpid())


def test_dead_process_has_no_birth_even_before_it_is_reaped() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as short:
        assert short.stdout is not None
        assert short.stdout.read() == b""
        os.waitid(os.P_PID, short.pid, os.WEXITED | os.WNOWAIT)
        assert birth(short.pid) is None
    assert birth(short.pid) is None
    assert birth(0) is None
    assert birth(-1) is None
