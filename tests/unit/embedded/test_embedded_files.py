"""Locks, logs and state files around processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.files import FileLock, open_log, own_dir_in_shared_place, refuse_foreign, tail, write_whole

FORKS = """
import os, sys
from collections.abc import Callable
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


# ── what another user may have prepared ───────────────────────────────────────────────────────────


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory as dlpipe makes it, with a socket in it."""
    made = tmp_path / "home"
    (made / "run").mkdir(parents=True)
    made.chmod(0o700)
    (made / "run").chmod(0o700)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(made / "run" / "redis.sock"))
    return made


def linked_away(path: Path) -> None:
    path.rename(path.with_name(path.name + ".other"))
    path.symlink_to(path.with_name(path.name + ".other"))


def anothers_link(path: Path) -> None:
    linked_away(path)
    os.chown(path, 4711, 4711, follow_symlinks=False)


def test_a_data_directory_of_ours_is_taken(home: Path, tmp_path: Path) -> None:
    refuse_foreign(home)
    refuse_foreign(tmp_path / "not made yet")
    home.chmod(0o755)
    refuse_foreign(home)
    linked_away(home)
    refuse_foreign(home)


def test_a_data_directory_of_root_that_a_group_may_write_to_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container gets its volume; what is made in it is the process's own, which is looked at all the same."""
    if os.geteuid() == 0:
        for path in (home / "run", home / "run" / "redis.sock"):
            os.chown(path, 4711, 4711)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    home.chmod(0o2775)
    refuse_foreign(home)


@pytest.mark.parametrize(
    ("name", "harm", "word"),
    [
        ("", lambda path: os.chown(path, 4711, 4711), "another user"),
        ("", anothers_link, "another user"),
        ("", lambda path: path.chmod(0o777), "written to by other users"),
        ("", lambda path: path.chmod(0o1777), "written to by other users"),
        ("run", lambda path: os.chown(path, 4711, 4711), "another user"),
        ("run", lambda path: path.chmod(0o770), "written to by other users"),
        ("run", linked_away, "a link"),
        ("run/redis.sock", lambda path: os.chown(path, 4711, 4711), "another user"),
        ("run/redis.sock", linked_away, "a link"),
    ],
    ids=range(9),
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_another_user_may_have_prepared_is_refused(
    home: Path, name: str, harm: Callable[[Path], object], word: str
) -> None:
    harm(home / name)
    with pytest.raises(Misconfigured, match=word) as refused:
        refuse_foreign(home)
    assert (refused.value.code, "DLPIPE_HOME" in refused.value.hint) == ("home_foreign", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "dlpipe status",
        "dlpipe fetch http://127.0.0.1:9/a",
        "dlpipe plan http://127.0.0.1:9/a",
        "dlpipe jobs",
        "dlpipe down",
        "dlpipe doctor",
        "celery -A dlpipe worker",
    ],
)
def test_each_command_refuses_anothers_data_directory_and_says_what_to_do(home: Path, words: str) -> None:
    os.chown(home, 4711, 4711)
    command, *rest = words.split()
    env = {name: value for name, value in os.environ.items() if not name.startswith("DLPIPE_")}
    ran = subprocess.run(
        [Path(sys.executable).with_name(command), *rest],
        env=env | {"DLPIPE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, "[home_foreign]" in ran.stderr, "Traceback" in ran.stderr) == (2, True, False), ran.stderr
    assert sorted(path.name for path in home.rglob("*")) == ["redis.sock", "run"]
