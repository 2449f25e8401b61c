"""Services that are forked instead of started anew: they are children of who asked, and die with it (ADR 40)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.embedded.looking import alive, first_line
from tests.servers import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("the stack of one machine brings its own"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is a nursery on Linux only"),
]

SERVICE = """
import json, os, signal, sys, time
state = {"pid": os.getpid(), "parent": os.getppid(), "words": sys.argv[1:], "name": __name__, "path": sys.path[0],
         "mark": os.environ.get("MARK"), "session": os.getsid(0), "heavy": "calendar" in sys.modules,
         "open": [fd for fd in range(3, 20) if os.path.exists(f"/proc/self/fd/{fd}")],
         "term": str(signal.getsignal(signal.SIGTERM)), "stdin": os.readlink("/proc/self/fd/0")}
print(json.dumps(state), flush=True)
if sys.argv[1] == "end":
    sys.exit(int(sys.argv[2]))
time.sleep(120)
"""
OWNER = """
import json, os, signal, sys, time
from pathlib import Path
from dlpipe.embedded.nursery import Nursery
from dlpipe.embedded.redis import PrivateRedis
from dlpipe.embedded.stack import Service, Stack
home, words = Path(sys.argv[1]), sys.argv[2:]
os.dup2(1, 9)  # as a shell may leave something open
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as fetch has it
nursery = Nursery.plant(("calendar",))
nursery.soon()
if words[0] == "none":
    os.kill(nursery._process.pid, signal.SIGKILL)
service = Service("one", [sys.executable, "-P", "-m", "probe", *words])
env = {"MARK": "stack", "PYTHONPATH": os.pathsep.join([str(home.parent), os.environ["PYTHONPATH"]])}
stack = Stack(home, [service], PrivateRedis(home), env, nursery=nursery)
stack.try_start()
print(json.dumps({"pid": os.getpid(), "nursery": nursery._process.pid, **stack.pids}), flush=True)
for line in sys.stdin:
    before = stack.pids
    while stack.pids == before:
        stack.poll()
        time.sleep(0.01)
    print(json.dumps(stack.pids), flush=True)
stack.stop(10)
nursery.end()
"""

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(home: Path, run: Run) -> Callable[..., tuple[subprocess.Popen[str], dict[str, int]]]:
    def start(*words: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
        (home.parent / "probe.py").write_text(SERVICE)
        owner = run(OWNER, home, *words)
        return owner, json.loads(first_line(owner))

    return start


def said(home: Path, count: int = 1) -> list[dict[str, Any]]:
    """What each run of the service has said of itself."""
    log = home / "log" / "one.log"
    wait_until(lambda: log.exists() and log.read_text().count("\n") >= count, "the service runs", 60)
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_service_is_a_forked_child_of_the_owner_as_if_it_were_started(begin: Any, home: Path) -> None:
    _, pids = begin("stay", "a b", "")
    (told,) = said(home)
    assert (told["pid"], told["parent"]) == (pids["one"], pids["pid"])
    assert (told["words"], told["name"], told["mark"]) == (["stay", "a b", ""], "__main__", "stack")
    assert (told["session"], told["path"], told["stdin"]) == (told["pid"], str(home.parent), "/dev/null")
    assert told["term"] == str(signal.SIG_DFL), "not what the owner does when it is told to end"
    assert told["open"] == [], "nothing but its own streams"
    assert told["heavy"], "what was imported before is there"


def test_it_is_ended_with_the_stack_and_nothing_is_left(begin: Any, home: Path) -> None:
    owner, pids = begin("stay")
    said(home)
    owner.stdin.close()
    assert owner.stdout.read() == "", "nobody else holds its output"
    assert owner.wait(30) == 0
    assert not any(map(alive, pids.values()))


def test_a_killed_one_is_forked_anew(begin: Any, home: Path) -> None:
    owner, pids = begin("stay")
    said(home)
    os.kill(pids["one"], signal.SIGKILL)
    owner.stdin.write("look\n")
    owner.stdin.flush()
    again = json.loads(first_line(owner))["one"]
    assert said(home, 2)[1] == said(home, 2)[0] | {"pid": again, "session": again}


def test_all_of_them_die_with_a_killed_owner(begin: Any, home: Path) -> None:
    owner, pids = begin("stay")
    said(home)
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(map(alive, pids.values())), "nursery and service are gone")


def test_without_its_nursery_a_service_is_started_anew(begin: Any, home: Path) -> None:
    owner, pids = begin("none")
    (told,) = said(home)
    assert (told["pid"], told["heavy"]) == (pids["one"], False)
    owner.kill()
    wait_until(lambda: not alive(pids["one"]), "and dies with its owner all the same")
