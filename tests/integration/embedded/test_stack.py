"""The stack with dummy services: whoever is killed, nothing runs on unseen. Processes are looked at by pid."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.redis import Answer, PrivateRedis, ping, socket_path
from dlpipe.embedded.service import QUICK_LIMIT
from dlpipe.embedded.stack import Service, Stack, ask_to_stop, running
from tests.integration.embedded.looking import alive, client, first_line
from tests.servers import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("the stack of one machine brings its own"),
]

IDLE = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
OWNER = """
import json, signal, sys, time
from pathlib import Path
from dlpipe.embedded.redis import PrivateRedis
from dlpipe.embedded.stack import Service, Stack
home = Path(sys.argv[1])
redis = PrivateRedis(home)
idle = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
stack = Stack(home, [Service("worker", idle), Service("beat", idle)], redis, {})
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
if not stack.try_start():
    print(json.dumps(None), flush=True)
    sys.exit(3)
print(json.dumps({"redis": redis.server_pid, **stack.pids}), flush=True)
while not ending:
    stack.poll()
    time.sleep(0.05)
stack.stop(10)
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def make(home: Path, redis: PrivateRedis) -> Iterator[Callable[..., Stack]]:
    made: list[Stack] = []

    def build(*services: Service, **options: object) -> Stack:
        made.append(Stack(home, services, redis, {"DLPIPE_TEST": "äö"}, **options))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for each in made:
        each.stop(0.0)


def script(body: str) -> list[str]:
    return [*IDLE[:-1], body]


def test_killed_owner_leaves_nothing_running(home: Path, run: Callable[..., subprocess.Popen[str]]) -> None:
    owner = run(OWNER, home)
    pids = json.loads(first_line(owner))
    assert set(pids) == {"redis", "worker", "beat"}
    assert all(alive(pid) for pid in pids.values())
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids.values()), "all are dead")
    assert running(home) is None


def test_second_stack_is_refused_and_takes_over_after_the_first_was_killed(
    home: Path, run: Callable[..., subprocess.Popen[str]], make: Callable[..., Stack]
) -> None:
    owner = run(OWNER, home)
    pids = json.loads(first_line(owner))
    second = make(Service("worker", IDLE))
    assert not second.try_start()
    assert second.pids == {}
    info = running(home)
    assert info is not None
    assert (info.pid, info.here) == (owner.pid, True)
    assert info.services == {name: pids[name] for name in ("worker", "beat")}
    owner.kill()
    owner.wait()
    wait_until(second.try_start, "the second took over")
    assert ping(socket_path(home)) is Answer.READY
    info = running(home)
    assert info is not None
    assert (info.pid, info.services) == (os.getpid(), second.pids)


def test_asked_to_stop_the_owner_ends_everything_and_says_so(
    home: Path, run: Callable[..., subprocess.Popen[str]]
) -> None:
    owner = run(OWNER, home)
    pids = json.loads(first_line(owner))
    assert ask_to_stop(home, 20.0)
    assert owner.wait(20) == 0
    assert not any(alive(pid) for pid in pids.values())
    assert running(home) is None
    assert not (home / "run" / "stack.json").exists()


def test_owner_that_does_not_end_in_time_is_reported(home: Path, run: Callable[..., subprocess.Popen[str]]) -> None:
    owner = run(OWNER, home)
    json.loads(first_line(owner))
    owner.send_signal(signal.SIGSTOP)
    assert not ask_to_stop(home, 0.1)
    owner.send_signal(signal.SIGCONT)
    assert owner.wait(20) == 0


def test_stack_of_this_process_starts_once(make: Callable[..., Stack]) -> None:
    stack = make(Service("worker", IDLE))
    assert stack.try_start()
    assert not stack.try_start()
    assert not make(Service("worker", IDLE)).try_start()


def test_what_the_first_job_does_not_need_starts_later(home: Path, make: Callable[..., Stack]) -> None:
    clock = Clock()
    stack = make(Service("worker", IDLE), Service("beat", IDLE, after_s=2.5), clock=clock)
    assert stack.try_start()
    clock.now = 2.4
    stack.poll()
    assert list(stack.pids) == ["worker"]
    clock.now = 2.5
    stack.poll()
    assert list(stack.pids) == ["worker", "beat"]
    info = running(home)
    assert info is not None
    assert info.services == stack.pids


def test_output_and_environment_of_a_service(home: Path, make: Callable[..., Stack]) -> None:
    body = "import os,sys,time; print(os.environ['DLPIPE_TEST']); print('err', file=sys.stderr, flush=True)"
    stack = make(Service("worker", [sys.executable, "-u", "-c", body + "; time.sleep(120)"]))
    assert stack.try_start()
    log = home / "log" / "worker.log"
    wait_until(lambda: log.read_text() == "äö\nerr\n", "both lines are in the log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_ctrl_c_in_the_terminal_reaches_no_service(make: Callable[..., Stack]) -> None:
    stack = make(Service("worker", IDLE), Service("beat", IDLE))
    assert stack.try_start()
    for pid in stack.pids.values():
        assert os.getpgid(pid) == os.getsid(pid) == pid


def test_service_that_ended_is_reported_and_started_again(home: Path, make: Callable[..., Stack]) -> None:
    reported: list[int] = []
    stack = make(Service("worker", IDLE), Service("beat", IDLE), on_worker_death=reported.append)
    assert stack.try_start()
    before = stack.pids
    os.kill(before["worker"], signal.SIGKILL)
    wait_until(lambda: not alive(before["worker"]), "the worker is dead")
    stack.poll()
    assert reported == [before["worker"]]
    assert alive(stack.pids["worker"])
    assert stack.pids["worker"] != before["worker"]
    assert stack.pids["beat"] == before["beat"]
    info = running(home)
    assert info is not None
    assert info.services == stack.pids


def test_children_of_a_killed_service_go_with_it(home: Path, make: Callable[..., Stack]) -> None:
    mark = home / "child"
    body = (
        "import subprocess,sys,time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'])\n"
        f"open({str(mark)!r},'w').write(f'{{child.pid}}.'); time.sleep(120)"
    )
    stack = make(Service("worker", script(body)))
    assert stack.try_start()
    wait_until(lambda: mark.exists() and mark.read_text().endswith("."), "the child is up")
    child = int(mark.read_text().rstrip("."))
    os.kill(stack.pids["worker"], signal.SIGKILL)

    def look() -> bool:
        stack.poll()
        return not alive(child)

    wait_until(look, "the child is dead")


def test_failure_to_report_a_death_does_not_end_the_stack(make: Callable[..., Stack]) -> None:
    def fail(pid: int) -> None:
        raise RuntimeError("the ledger is away")

    stack = make(Service("worker", IDLE), on_worker_death=fail)
    assert stack.try_start()
    before = stack.pids["worker"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not alive(before), "the worker is dead")
    stack.poll()
    assert alive(stack.pids["worker"])


def test_service_that_keeps_crashing_is_reported_with_its_log(make: Callable[..., Stack]) -> None:
    clock = Clock()
    ends: list[int] = []
    waits: list[float] = []
    crash = Service("worker", script("import sys; sys.exit('no module named nowhere')"))
    stack = make(crash, Service("beat", IDLE), on_worker_death=ends.append, clock=clock)
    assert stack.try_start()

    def watch() -> None:
        seen = len(ends)
        stack.poll()
        if len(ends) > seen and "worker" not in stack.pids:
            began = clock.now
            while "worker" not in stack.pids:
                clock.now += 0.5
                stack.poll()
            waits.append(clock.now - began)

    with pytest.raises(Misconfigured, match=r"worker ended 5 times(.|\n)*no module named nowhere") as caught:
        wait_until(watch, "the stack gives up")
    assert caught.value.code == "service_crashes"
    assert "status 1" in caught.value.message
    assert len(ends) == 5
    assert waits == [1.0, 2.0, 4.0]
    assert alive(stack.pids["beat"])


def test_what_only_eases_the_work_is_left_out_when_it_keeps_crashing(make: Callable[..., Stack]) -> None:
    clock = Clock()
    ends: list[int] = []
    crash = Service("ready", script("import sys; sys.exit('no module named nowhere')"), eases=True)
    stack = make(crash, Service("worker", IDLE), on_worker_death=ends.append, clock=clock)
    assert stack.try_start()

    def given_up() -> bool:
        if "ready" not in stack.pids:
            clock.now += 4.0
        stack.poll()
        return len(ends) == QUICK_LIMIT

    wait_until(given_up, "it has crashed often enough")
    clock.now += 1e6
    stack.poll()
    assert list(stack.pids) == ["worker"]


def test_service_gets_its_time_to_end(home: Path, make: Callable[..., Stack]) -> None:
    state = home / "state"
    body = (
        "import signal,sys,time\n"
        f"def say(text): open({str(state)!r},'w').write(text)\n"
        "def end(*_): say('finished'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); say('up'); time.sleep(120)"
    )
    stack = make(Service("worker", script(body)))
    assert stack.try_start()
    wait_until(lambda: state.exists() and state.read_text() == "up", "the worker is up")
    pid = stack.pids["worker"]
    stack.stop(20.0)
    assert state.read_text() == "finished"
    assert not alive(pid)


def test_service_that_does_not_end_is_killed_with_its_children_after_the_grace_time(
    home: Path, redis: PrivateRedis, make: Callable[..., Stack]
) -> None:
    mark = home / "child"
    body = (
        "import signal,subprocess,sys,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'])\n"
        f"open({str(mark)!r},'w').write(f'{{child.pid}}.'); time.sleep(120)"
    )
    stack = make(Service("worker", script(body)))
    assert stack.try_start()
    wait_until(lambda: mark.exists() and mark.read_text().endswith("."), "the child is up")
    child, worker, server = int(mark.read_text().rstrip(".")), stack.pids["worker"], redis.server_pid
    assert server is not None
    stack.stop(0.2)
    assert not alive(worker)
    assert not alive(server)
    wait_until(lambda: not alive(child), "the child is dead")
    assert running(home) is None
    assert not (home / "run" / "stack.json").exists()
    stack.stop(0.0)


def test_stack_whose_redis_cannot_start_leaves_no_lock_and_no_service(
    home: Path, make: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> str:
        raise Misconfigured("none here", code="redis_missing")

    monkeypatch.setattr("dlpipe.embedded.redis.find_server", refuse)
    stack = make(Service("worker", IDLE))
    with pytest.raises(Misconfigured, match="none here"):
        stack.try_start()
    assert stack.pids == {}
    assert running(home) is None


def test_redis_killed_under_a_running_stack_comes_back(
    home: Path, redis: PrivateRedis, make: Callable[..., Stack]
) -> None:
    stack = make(Service("worker", IDLE))
    assert stack.try_start()
    pid = redis.server_pid
    assert pid is not None
    with client(home) as c:
        c.set("k", "v")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: redis.server_pid not in {None, pid}, "there is a new server")
    wait_until(lambda: ping(redis.socket) is Answer.READY, "it answers")
    with client(home) as c:
        assert c.get("k") == b"v"
