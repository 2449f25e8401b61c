"""A tethered command lives as long as its owner, and is otherwise the command itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlpipe.embedded import tether
from dlpipe.embedded.process import birth
from dlpipe.embedded.spawn import in_lasting_thread
from tests.servers import wait_until

TETHER = [sys.executable, "-I", "-S", str(Path(tether.__file__))]
LONG = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
OWNER = """
import os, subprocess, sys
at = sys.argv.index("--")
child = subprocess.Popen([*sys.argv[1:at], str(os.getpid()), *sys.argv[at:]])
child.wait()
"""


def alive(pid: int) -> bool:
    return birth(pid) is not None


@pytest.fixture(params=[[], ["--watch"]], ids=["kernel", "watch"])
def options(request: pytest.FixtureRequest) -> list[str]:
    if not request.param and not sys.platform.startswith("linux"):
        pytest.skip("this kernel sends no signal on a parent's death")
    return list(request.param)


@pytest.fixture
def owner() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-c", OWNER, *words]
        started.append(subprocess.Popen(command, text=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_command_dies_when_its_owner_is_killed(
    owner: Callable[..., subprocess.Popen[str]], options: list[str], tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    body = f"import os,time; open({str(mark)!r},'w').write(str(os.getpid())+'.'); time.sleep(120)"
    started = owner(*TETHER, *options, "--", *LONG[:-1], body)
    wait_until(lambda: mark.exists() and mark.read_text().endswith("."), "the command is up")
    command = int(mark.read_text().rstrip("."))
    assert alive(command)
    started.kill()
    started.wait()
    wait_until(lambda: not alive(command), "the command is dead")


def test_the_signal_on_death_can_be_a_polite_one(
    owner: Callable[..., subprocess.Popen[str]], options: list[str], tmp_path: Path
) -> None:
    mark = tmp_path / "state"
    body = (
        "import signal,sys,time\n"
        f"def say(text): open({str(mark)!r},'w').write(text)\n"
        "def end(*_): say('polite'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); say('up'); time.sleep(120)"
    )
    term = str(int(signal.SIGTERM))
    started = owner(*TETHER, *options, "--signal", term, "--", *LONG[:-1], body)
    wait_until(lambda: mark.exists() and mark.read_text() == "up", "the command is up")
    started.kill()
    started.wait()
    wait_until(lambda: mark.read_text() == "polite", "the command heard the signal")


def test_command_is_not_run_when_the_owner_died_before(options: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    somebody_else = str(os.getppid())
    ended = subprocess.run([*TETHER, *options, somebody_else, "--", "touch", str(mark)], check=False)
    assert ended.returncode == 125
    assert not mark.exists()


def test_exit_status_is_that_of_the_command(options: list[str]) -> None:
    for body, status in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)):
        command = [*TETHER, *options, str(os.getpid()), "--", *LONG[:-1], body]
        assert subprocess.run(command, check=False).returncode == status


def test_sigterm_reaches_the_command(options: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "state"
    body = (
        "import signal,sys,time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"open({str(mark)!r},'w').close(); time.sleep(120)"
    )
    command = [*TETHER, *options, str(os.getpid()), "--", *LONG[:-1], body]
    with in_lasting_thread(lambda: subprocess.Popen(command)) as started:
        wait_until(mark.exists, "the command is up")
        started.terminate()
        assert started.wait(20) == 5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signal masks are read from /proc")
def test_command_starts_with_no_signal_ignored_or_blocked(options: list[str]) -> None:
    command = [*TETHER, *options, str(os.getpid()), "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]

    def run() -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    masks = [int(line.split()[1], 16) for line in run().splitlines()]
    assert len(masks) == 2
    for mask in masks:
        assert not mask & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGPIPE - 1))


def test_command_that_does_not_exist_is_named(options: list[str]) -> None:
    command = [*TETHER, *options, str(os.getpid()), "--", "/nowhere/at-all"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 127
    assert "cannot run '/nowhere/at-all': No such file" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="nothing"),
        pytest.param(["1"], id="no command"),
        pytest.param(["1", "--"], id="empty command"),
        pytest.param(["x", "--", "true"], id="owner is no number"),
        pytest.param(["--what", "1", "--", "true"], id="unknown option"),
        pytest.param(["--signal"], id="no value"),
    ],
)
def test_wrong_words_show_the_usage(words: list[str]) -> None:
    ended = subprocess.run([*TETHER, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 64
    assert ended.stderr.startswith("usage:")


def test_tethered_names_this_process_and_runs_without_site_packages() -> None:
    command = tether.tethered(["echo", "--", "hi"])
    assert command[1:3] == ["-I", "-S"]
    assert command[-5:] == [str(os.getpid()), "--", "echo", "--", "hi"]
    ran = in_lasting_thread(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    assert ran.stdout == "-- hi\n"


def test_forked_child_has_a_spawning_thread_of_its_own() -> None:
    body = (
        "import os\n"
        "from dlpipe.embedded.spawn import in_lasting_thread\n"
        "assert in_lasting_thread(os.getpid) == os.getpid()\n"
        "child = os.fork()\n"
        "assert in_lasting_thread(os.getpid) == os.getpid()\n"
        "raise SystemExit(child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", body], start_new_session=True) as started:
        try:
            assert started.wait(20) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def test_what_the_spawning_thread_raises_reaches_the_caller() -> None:
    with pytest.raises(FileNotFoundError):
        in_lasting_thread(lambda: subprocess.Popen(["/nowhere/at-all"]))
    assert in_lasting_thread(lambda: 1) == 1
