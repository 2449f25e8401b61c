"""Who is certainly gone, and who only may be. HEAL-2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.lease.owner import Identity
from tests.servers import state_of, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="identity rests on Linux's /proc")

PRINT_OWNER = "from dlpipe.lease import owner; print(owner.current(), flush=True); input()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A live process; its first line is its owner string."""
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def token_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip() + ".5e1f"


def own(**changes: str) -> str:
    """Our own token, with some parts changed."""
    node, pid, started = Identity().owner().split(".")
    parts = {"node": node, "pid": pid, "started": started, **changes}
    return f"{parts['node']}.{parts['pid']}.{parts['started']}.5e1f"


def test_the_owner_names_node_pid_and_start_time() -> None:
    node, pid, started = Identity().owner().split(".")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:12]
    assert node == f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    assert pid == str(os.getpid())
    assert started == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def test_a_live_process_is_not_dead(child: subprocess.Popen[str]) -> None:
    identity, token = Identity(), token_of(child)
    assert token.split(".")[0] == identity.owner().split(".")[0]
    assert not identity.is_dead(token)
    assert not identity.is_dead(own())


def test_a_process_that_ended_is_dead(child: subprocess.Popen[str]) -> None:
    token = token_of(child)
    child.kill()
    child.wait(10)
    assert Identity().is_dead(token)


def test_a_zombie_is_dead(child: subprocess.Popen[str]) -> None:
    token = token_of(child)
    child.kill()
    wait_until(lambda: state_of(child.pid) == "Z", "a zombie")  # nobody has waited for it yet
    assert Identity().is_dead(token)


def test_a_process_that_took_over_the_pid_is_not_the_owner(child: subprocess.Popen[str]) -> None:
    token_of(child)
    assert Identity().is_dead(own(pid=str(child.pid)))


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "000000000000-4026531836"},  # another boot or machine: who knows
        {"node": "host-00", "pid": "999999999"},
        {"node": Identity().owner().split("-")[0] + "-1", "pid": "999999999"},  # another container
        {"pid": "0"},
        {"pid": "-1"},
        {"pid": "99999999999999999999"},
        {"pid": "x"},
        {"started": "x"},
        {"started": ""},
    ],
)
def test_what_is_not_known_is_not_dead(changes: dict[str, str]) -> None:
    assert not Identity().is_dead(own(**changes))


@pytest.mark.parametrize("token", ["", "...", "a", "a.b", "a.1.2", "\u0661.1.1.1"])
def test_a_malformed_token_is_not_dead(token: str) -> None:
    assert not Identity().is_dead(token)


def test_a_token_with_a_part_too_many_or_too_few_is_not_dead() -> None:
    dead = own(pid="999999999")
    assert Identity().is_dead(dead)
    assert not Identity().is_dead(dead + ".x")
    assert not Identity().is_dead(dead.rpartition(".")[0])


# ── a /proc made for the test ──


def fake_proc(root: Path, **stats: str) -> str:
    """A /proc with our own boot, namespace and start time, and the given stat files by `p<pid>`."""
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("12345678-9abc-def0-0000-000000000000\n")
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").touch()
    (root / "self/stat").write_text(stat_line(os.getpid(), started=77))
    for pid, line in stats.items():
        (root / pid[1:]).mkdir()
        (root / pid[1:] / "stat").write_text(line)
    return str(root)


def stat_line(pid: int, comm: str = "python", state: str = "S", threads: int = 1, started: int = 77) -> str:
    return f"{pid} ({comm}) {state} {'0 ' * 16}{threads} 0 {started} {'0 ' * 30}\n"


@pytest.mark.parametrize("comm", ["a b", ") Z 1 (", "((", "x) Z", "\n) 1 2"])
def test_a_command_name_cannot_disguise_the_state(tmp_path: Path, comm: str) -> None:
    pid = os.getppid()
    proc = fake_proc(tmp_path, **{f"p{pid}": stat_line(pid, comm)})
    identity = Identity(proc)
    token = identity.owner().replace(f".{os.getpid()}.", f".{pid}.") + ".5e1f"
    assert not identity.is_dead(token)
    (tmp_path / str(pid) / "stat").write_text(stat_line(pid, comm, started=78))
    assert identity.is_dead(token)


@pytest.mark.parametrize(
    ("state", "threads", "dead"),
    [
        ("R", 1, False),
        ("D", 1, False),
        ("T", 1, False),  # stopped: it comes back
        ("Z", 1, True),
        ("X", 1, True),
        ("Z", 2, False),  # the main thread ended; another may still be writing
    ],
)
def test_only_an_ended_process_is_dead(tmp_path: Path, state: str, threads: int, dead: bool) -> None:
    pid = os.getppid()
    identity = Identity(fake_proc(tmp_path, **{f"p{pid}": stat_line(pid, state=state, threads=threads)}))
    assert identity.is_dead(identity.owner().replace(f".{os.getpid()}.", f".{pid}.") + ".5e1f") is dead


def test_a_process_that_proc_hides_is_not_dead(tmp_path: Path) -> None:
    identity = Identity(fake_proc(tmp_path))
    assert not identity.is_dead(identity.owner().replace(f".{os.getpid()}.", f".{os.getppid()}.") + ".5e1f")


def test_the_proc_of_another_pid_namespace_is_not_believed(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path)
    (tmp_path / "self/stat").write_text(stat_line(os.getpid() + 1))
    identity = Identity(proc)
    assert identity.owner().startswith("host-")
    assert not identity.is_dead(identity.owner() + ".5e1f")


@pytest.mark.parametrize("missing", ["sys/kernel/random/boot_id", "self/ns/pid", "self/stat"])
def test_without_proc_nobody_is_ever_dead(tmp_path: Path, missing: str) -> None:
    proc = fake_proc(tmp_path)
    (tmp_path / missing).unlink()
    identity = Identity(proc)
    node, pid, started = identity.owner().split(".")
    assert node.startswith("host-")
    assert (pid, started) == (str(os.getpid()), "0")
    assert not identity.is_dead(f"{node}.999999999.0.5e1f")
    assert identity.owner() == identity.owner()
    assert Identity(proc).owner() != identity.owner()


FORK = """
import os
from dlpipe.lease import owner
before = owner.current()
if os.fork() == 0:
    mine = owner.current()
    print(mine.split('.')[1] == str(os.getpid()), mine != before, owner.is_dead(before + '.x'), flush=True)
    os._exit(0)
os.wait()
print(owner.current() == before)
"""


def test_a_forked_child_has_its_own_owner() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["True", "True", "False", "True"], done.stderr
