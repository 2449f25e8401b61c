"""Locks, logs and state files around processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.files import FileLock, open_log, own_dir_in_shared_place, tail, write_whole

FORKS = """
import os, sys
from pathlib import Path
from dlpipe.embedded.files import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
child = os.fork()
if child == 0:
    os.write(1, b"held" if lock.held else b"free")
    os.read(0, 1)
    os._exit(0)
os.write(1, b"%d " % child)
os.kill(os.getpid(), 9)
"""


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "run" / "lock"), FileLock(tmp_path / "run" / "lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    assert second.is_held_elsewhere()
    assert not first.is_held_elsewhere()
    assert second.holder_pid() == os.getpid()
    first.release()
    assert not second.is_held_elsewhere()
    assert second.try_acquire()
    second.release()
    second.release()


def test_asking_creates_no_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "run" / "lock")
    assert not lock.is_held_elsewhere()
    assert lock.holder_pid() is None
    assert list(tmp_path.iterdir()) == []


def test_lock_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "lock").try_acquire()
    assert (tmp_path / "precious").read_text() == "precious"


def test_lock_that_is_free_a_moment_later_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, asking = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert asking.try_acquire()
    monkeypatch.setattr("time.sleep", lambda pause_s: asking.release() if pause_s else None)
    assert lock.try_acquire()
    lock.release()


def test_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(lock.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.wait(20) == -9
        assert parent.stdout is not None
        said = b""
        while b"free" not in said and b"held" not in said:
            said += os.read(parent.stdout.fileno(), 64)
        # The child still runs: it waits for us to close its input.
        assert b"free" in said
        assert lock.try_acquire()
    lock.release()


def test_lock_handed_to_a_child_lives_as_long_as_the_child(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.fileno()]):
        lock.close_here()
        assert other.is_held_elsewhere()
    assert not other.is_held_elsewhere()


def test_log_is_set_aside_only_past_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "log" / "worker.log"
    for text in (b"x" * 10, b"y"):
        fd = open_log(path, limit_bytes=10)
        os.write(fd, text)
        os.close(fd)
    assert path.read_bytes() == b"x" * 10 + b"y"
    os.close(open_log(path, limit_bytes=10))
    assert path.read_bytes() == b""
    assert path.with_name("worker.log.1").read_bytes() == b"x" * 10 + b"y"
    assert path.stat().st_mode & 0o777 == 0o600


def test_tail_shows_the_last_lines_with_control_characters_escaped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n" + b"first\nsecond \x1b[31m\xff\nthird\n")
    assert tail(path, after=4, lines=2) == "second \\x1b[31m�\nthird"
    assert tail(path, after=4) == "first\nsecond \\x1b[31m�\nthird"
    assert tail(path, after=10_000, lines=1) == "third"  # the log was set aside in between
    assert tail(path, limit_bytes=6) == "third"
    assert tail(tmp_path / "none") == ""


def test_state_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    write_whole(path, "a")
    write_whole(path, "b")
    assert path.read_text() == "b"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_directory_in_a_shared_place_is_made_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "dlpipe-0-x"
    assert own_dir_in_shared_place(path) == path
    assert path.stat().st_mode & 0o777 == 0o700
    assert own_dir_in_shared_place(path) == path


@pytest.mark.parametrize("trick", ["symlink", "file", "open to others", "of somebody else"])
def test_directory_in_a_shared_place_that_others_prepared_is_refused(
    tmp_path: Path, trick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dlpipe-0-x"
    if trick == "symlink":
        (tmp_path / "theirs").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "theirs")
    elif trick == "file":
        path.touch(mode=0o700)
    else:
        path.mkdir(mode=0o700)
    if trick == "open to others":
        path.chmod(0o750)
    if trick == "of somebody else":
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(Misconfigured, match="belongs to us alone"):
        own_dir_in_shared_place(path)
