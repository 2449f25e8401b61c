"""The private server: whoever is killed, there is one server, with its data, and none without an owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.files import FileLock
from dlpipe.embedded.redis import Answer, PrivateRedis, ping, socket_path
from tests.integration.embedded.looking import alive, client, first_line
from tests.servers import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("the stack of one machine brings its own"),
]

GUARDIAN = """
import sys, time
from pathlib import Path
from dlpipe.embedded.redis import PrivateRedis
redis = PrivateRedis(Path(sys.argv[1]))
redis.keep()
print(redis.server_pid or 0, flush=True)
time.sleep(120)
"""
FORKING = """
import os, sys, threading
from pathlib import Path
from dlpipe.core.errors import Misconfigured
from dlpipe.embedded import redis as embedded
from dlpipe.embedded.redis import PrivateRedis
redis = PrivateRedis(Path(sys.argv[1]))
redis.ensure()
child = os.fork()
if child == 0:
    redis.stop()
    redis.ensure()
    redis.keep()
    os.write(1, b"%s, %d thread\\n" % (str(redis.server_pid).encode(), threading.active_count()))
    os.read(0, 1)
    redis.stop()
    embedded.ANSWER_S = 0.1
    try:
        redis.ensure()
    except Misconfigured:
        os.write(1, b"refused\\n")
    os._exit(0)
os.waitpid(child, 0)
"""


def test_server_listens_on_a_private_socket_only_and_keeps_what_it_is_told(home: Path, redis: PrivateRedis) -> None:
    redis.ensure()
    assert stat.S_IMODE(redis.socket.stat().st_mode) == 0o700
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "dir": str(home / "redis"),
    }
    with client(home) as c:
        assert c.config_get(*wanted) == wanted
    assert stat.S_IMODE((home / "redis").stat().st_mode) == 0o700


def test_ensure_twice_is_once(redis: PrivateRedis) -> None:
    redis.ensure()
    pid = redis.server_pid
    redis.ensure()
    assert redis.server_pid == pid


def test_stop_ends_the_server_politely_and_a_later_start_has_its_data(home: Path, redis: PrivateRedis) -> None:
    redis.ensure()
    with client(home) as c:
        c.set("k", "v")
    pid = redis.server_pid
    assert pid is not None
    redis.stop()
    assert not alive(pid)
    assert "bye bye" in redis.log_file.read_text()
    assert not FileLock(home / "run" / "redis.lock").is_held_elsewhere()
    redis.stop()
    redis.ensure()
    with client(home) as c:
        assert c.get("k") == b"v"


def test_server_outlives_the_thread_that_asked_for_it(redis: PrivateRedis) -> None:
    asking = threading.Thread(target=redis.ensure)
    asking.start()
    asking.join()
    # The kernel would have killed it by now: the signal is sent while the thread ends.
    assert ping(redis.socket) is Answer.READY


@pytest.mark.parametrize("name", ["d" * 120, "my downloads # 100% \"naïve\" 'quotes'"])
def test_any_data_directory_will_do(home: Path, name: str) -> None:
    redis = PrivateRedis(home / name)
    assert home not in redis.socket.parents
    try:
        redis.ensure()
        with client(home / name) as c:
            assert c.config_get("dir") == {"dir": str(home / name / "redis")}
        assert stat.S_IMODE(redis.socket.parent.stat().st_mode) == 0o700
    finally:
        redis.stop()
    assert not redis.socket.parent.exists()


def test_short_directory_prepared_by_somebody_else_is_refused(home: Path) -> None:
    redis = PrivateRedis(home / ("d" * 120))
    redis.socket.parent.mkdir(mode=0o755)
    try:
        with pytest.raises(Misconfigured, match="belongs to us alone"):
            redis.ensure()
    finally:
        redis.socket.parent.rmdir()


def test_socket_left_over_by_a_killed_server_is_no_obstacle(home: Path, redis: PrivateRedis) -> None:
    redis.ensure()
    pid = redis.server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the server is dead")
    assert redis.socket.exists()
    redis.ensure()
    assert redis.server_pid not in {None, pid}
    assert ping(redis.socket) is Answer.READY


@pytest.mark.parametrize("damage", ["middle", "tail", "manifest", "file gone", "base"])
def test_damaged_file_is_no_obstacle(home: Path, redis: PrivateRedis, damage: str) -> None:
    redis.ensure()
    with client(home) as c:
        for number in range(100):
            c.set(f"k{number}", "v" * 100)
    redis.stop()
    folder = home / "redis" / "appendonlydir"
    log = next(folder.glob("*.incr.aof"))
    if damage == "middle":
        log.write_bytes(log.read_bytes()[:2000] + b"\0" * 100 + log.read_bytes()[2100:])
    elif damage == "tail":
        log.write_bytes(log.read_bytes()[:-3])
    elif damage == "file gone":
        log.unlink()
    elif damage == "base":
        next(folder.glob("*.base.rdb")).write_bytes(b"garbage")
    else:
        next(folder.glob("*.manifest")).write_bytes(b"garbage\n")
    redis.ensure()
    with client(home) as c:
        # A torn tail is what a power cut leaves: all but the last command is kept.
        assert c.dbsize() == (99 if damage == "tail" else 0)
    assert (home / "redis.damaged").exists() == (damage != "tail")


def test_second_process_uses_the_server_of_the_first(
    home: Path, redis: PrivateRedis, run: Callable[..., subprocess.Popen[str]]
) -> None:
    redis.ensure()
    assert first_line(run(GUARDIAN, home)) == "0\n"


def test_data_is_locked_by_the_server_itself(home: Path, redis: PrivateRedis) -> None:
    data = FileLock(home / "run" / "redis-data.lock")
    redis.ensure()
    assert data.is_held_elsewhere()
    redis.stop()
    assert not data.is_held_elsewhere()


def test_two_that_start_at_once_make_one_server(home: Path, run: Callable[..., subprocess.Popen[str]]) -> None:
    pids = [int(first_line(each)) for each in [run(GUARDIAN, home) for _ in range(4)]]
    assert sorted(bool(pid) for pid in pids) == [False, False, False, True]


def test_server_dies_with_its_killed_owner_and_the_next_guardian_has_its_data(
    home: Path, redis: PrivateRedis, run: Callable[..., subprocess.Popen[str]]
) -> None:
    owner = run(GUARDIAN, home)
    server = int(first_line(owner))
    assert server
    redis.keep()
    assert redis.server_pid is None
    with client(home) as c:
        c.set("k", "v")
    owner.kill()
    wait_until(lambda: not alive(server), "the server of the dead owner is dead")
    wait_until(lambda: redis.server_pid is not None, "the guardian took over", within_s=10)
    wait_until(lambda: ping(redis.socket) is Answer.READY, "the new server answers")
    with client(home) as c:
        assert c.get("k") == b"v"


def test_guardian_starts_a_killed_server_again_with_its_data(home: Path, redis: PrivateRedis) -> None:
    redis.keep()
    redis.keep()
    with client(home) as c:
        c.set("k", "v")
    pid = redis.server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: redis.server_pid not in {None, pid}, "there is a new server")
    wait_until(lambda: ping(redis.socket) is Answer.READY, "it answers")
    with client(home) as c:
        assert c.get("k") == b"v"


def test_forked_child_owns_nothing_and_stops_nothing(home: Path, run: Callable[..., subprocess.Popen[str]]) -> None:
    parent = run(FORKING, home)
    assert parent.stdin is not None
    assert first_line(parent) == "None, 1 thread\n"
    assert ping(socket_path(home)) is Answer.READY
    lock = FileLock(home / "run" / "redis.lock")
    assert lock.is_held_elsewhere()
    parent.kill()
    parent.wait()
    # The child still runs, and must hold neither the server nor the lock.
    wait_until(lambda: ping(socket_path(home)) is Answer.NONE, "the server is dead")
    wait_until(lambda: not lock.is_held_elsewhere(), "the lock is free")
    # Even now that it could: a prefork child lives shorter than those who would rely on it.
    parent.stdin.close()
    assert first_line(parent) == "refused\n"
    assert ping(socket_path(home)) is Answer.NONE
