"""The ready process and the client that hands it commands: real processes, descriptors and signals (ADR 40)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlpipe.embedded import errand
from dlpipe.embedded.place import socket_in
from tests.integration.embedded.looking import alive
from tests.servers import state_of, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("no server and no ledger takes part in it"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is a ready process on Linux only"),
]

REPOSITORY = Path(__file__).resolve().parents[3]
SERVER = """
import json, os, resource, select, signal, sys, time
from pathlib import Path

def told(**what):
    print(json.dumps({"pid": os.getpid(), "keeper": os.getppid(), **what}), flush=True)

def run():
    word = sys.argv[1]
    if word == "exit":
        sys.exit(int(sys.argv[2]))
    if word == "say":
        sys.exit("it cannot be")
    if word == "fail":
        raise ZeroDivisionError
    if word == "surroundings":
        umask = os.umask(0)
        told(argv=sys.argv[1:], env=os.environ.get("MARK"), cwd=os.getcwd(), umask=umask, stdin=sys.stdin is not None,
             files=resource.getrlimit(resource.RLIMIT_NOFILE)[0], path=sys.path[0], server=SERVER)
        sys.stderr.write("to the other\\n")
    if word == "read":
        told(read=sys.stdin.read(), seventh=Path("/dev/fd/7").read_text(), same=os.read(7, 0).decode())
    if word == "terminal":
        signal.signal(signal.SIGWINCH, lambda *_: told(size=tuple(os.get_terminal_size(1))))
        told(tty=os.isatty(0), size=tuple(os.get_terminal_size(1)))
        while not select.select([0], [], [], 0.05)[0]:
            pass  # a signal just before a read that waits for ever would not be looked at
        sys.stdin.readline()
    if word == "wait":
        try:
            told(handler=str(signal.getsignal(signal.SIGINT)))
            while not Path(sys.argv[2]).exists():
                time.sleep(0.01)
        except KeyboardInterrupt:
            Path(sys.argv[2] + ".interrupted").touch()
            sys.exit(130)
        sys.exit(7)

SERVER = os.getpid()
from dlpipe.embedded import ready
if len(sys.argv) > 2:
    exec(sys.argv[2])
print("serving", flush=True)
ready.serve(Path(sys.argv[1]), run)
"""
CLIENT = """
import sys
from dlpipe.embedded import ask, errand
if sys.argv[1]:
    exec(sys.argv[1])
del sys.argv[1]
status = ask.carried_out(sys.argv[1:])
if status is None:
    print("ordinary")
    sys.exit(99)
sys.exit(status)
"""


class World:
    """A data directory, a ready process, and clients. What a test says in Python is done there first."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = Path(socket_in(str(home), errand.SOCKET_NAME))
        self.children: list[subprocess.Popen[str]] = []

    def serve(self, first: str = "") -> subprocess.Popen[str]:
        made = self._start(SERVER, str(self.home), first)
        assert made.stdout is not None
        assert made.stdout.readline() == "serving\n"
        wait_until(lambda: self.socket.exists() or made.poll() is not None, "it listens")
        return made

    def ask(self, *words: str, first: str = "", **how: Any) -> subprocess.Popen[str]:
        return self._start(CLIENT, first, *words, **how)

    def answer(self, *words: str, first: str = "", stdin: str | None = "", **how: Any) -> tuple[int, str, str]:
        made = self.ask(*words, first=first, **how)
        out, err = made.communicate(stdin, timeout=60)
        return made.returncode, out, err

    def _start(self, script: str, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DLPIPE_HOME": str(self.home), **(env or {})}
        environment.pop("DLPIPE_CONFIG", None)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        made = subprocess.Popen(
            [sys.executable, "-c", script, *words], env=environment, text=True, start_new_session=True,
            **{**streams, **how},
        )  # fmt: skip
        self.children.append(made)
        return made

    def end(self) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def world(home: Path) -> Iterator[World]:
    made = World(home)
    yield made
    made.end()


def told(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    found: dict[str, Any] = json.loads(child.stdout.readline())
    return found


# ── what goes along, and what comes back ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(("words", "status"), [(("exit", "0"), 0), (("exit", "3"), 3), (("say",), 1), (("fail",), 1)])
def test_the_command_s_exit_status_comes_back(world: World, words: tuple[str, ...], status: int) -> None:
    world.serve()
    code, out, err = world.answer(*words)
    assert (code, out) == (status, "")
    assert ("it cannot be" in err, "ZeroDivisionError" in err) == (words[0] == "say", words[0] == "fail")


def test_words_variables_folder_mask_limits_and_streams_are_the_client_s(world: World, tmp_path: Path) -> None:
    server = world.serve("import os, resource; os.environ['MARK'] = 'server'; os.umask(0o007); os.chdir('/')")

    def as_a_shell_would() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))

    code, out, err = world.answer(
        "surroundings", "täst \udcff", cwd=tmp_path, env={"MARK": "client"}, preexec_fn=as_a_shell_would
    )
    assert (code, err) == (0, "to the other\n")
    found = json.loads(out)
    assert found["pid"] != server.pid
    assert found["server"] == server.pid, "it was forked from the ready process"
    assert found["argv"] == ["surroundings", "täst \udcff"]
    assert (found["env"], found["cwd"], found["umask"], found["files"]) == ("client", str(tmp_path), 0o027, 200)


def test_standard_input_and_further_descriptors_reach_the_command(world: World, tmp_path: Path) -> None:
    world.serve()
    (tmp_path / "seven").write_text("from the seventh")
    with (tmp_path / "seven").open() as file:

        def seventh() -> None:
            os.dup2(file.fileno(), 7)

        # Popen closes the others after it has called this.
        code, out, err = world.answer("read", stdin="a\nb", preexec_fn=seventh, pass_fds=(7,))
    assert code == 0, err
    found = json.loads(out)
    assert (found["read"], found["seventh"], found["same"]) == ("a\nb", "from the seventh", "")


def test_a_descriptor_that_is_closed_is_closed_for_the_command(world: World) -> None:
    world.serve()
    code, out, err = world.answer("surroundings", stdin=None, preexec_fn=lambda: os.close(0))
    assert (code, json.loads(out)["stdin"]) == (0, False), err


def test_a_terminal_is_the_command_s_and_its_new_size_is_told(world: World) -> None:
    world.serve()
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 20, 70, 0, 0))
    quiet = termios.tcgetattr(theirs)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, quiet)
    child = world.ask("terminal", stdin=theirs, stdout=theirs)
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        first = json.loads(_line(terminal))
        assert (first["tty"], first["size"]) == (True, [70, 20])
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 90, 0, 0))
        child.send_signal(signal.SIGWINCH)
        assert json.loads(_line(terminal))["size"] == [90, 30]
        terminal.write(b"\n")
        assert child.wait(20) == 0
    os.close(theirs)


def _line(stream: Any) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        found += stream.read(1)
    return found


# ── signals, and who is killed when ───────────────────────────────────────────────────────────────


def test_ctrl_c_interrupts_the_command_and_its_status_comes_back(world: World, tmp_path: Path) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"))
    told(child)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert (tmp_path / "go.interrupted").exists()


def test_a_signal_that_does_not_end_the_client_s_wait_is_passed_on_all_the_same(world: World, tmp_path: Path) -> None:
    """As one does that comes just before the wait begins; here it comes to another thread."""
    go = tmp_path / "go"
    late = f"""
import signal, threading, time
from pathlib import Path

def late():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler or not Path({str(go)!r}).exists():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=late, daemon=True).start()
"""
    world.serve()
    child = world.ask("wait", str(tmp_path / "never"), first=late)
    told(child)
    go.touch()
    assert child.wait(20) == 130
    assert (tmp_path / "never.interrupted").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_who_is_ended_by_a_signal_ends_the_client_by_it(world: World, tmp_path: Path, number: signal.Signals) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"), preexec_fn=_ends_plainly)
    pid = told(child)["pid"]
    child.send_signal(number)
    assert child.wait(20) == -number
    assert not alive(pid)


def _ends_plainly() -> None:
    """By each of these signals, whatever the tests were started with (nohup ignores one), and without a core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def test_an_ignored_ctrl_c_stays_ignored(world: World, tmp_path: Path) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert told(child)["handler"] == str(signal.SIG_IGN)
    child.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert child.wait(20) == 7


def test_signals_that_only_the_c_library_may_set_are_left_alone() -> None:
    ignored = 1 << (33 - 1) | 1 << (signal.SIGHUP - 1)
    found = errand.Signals(f"SigBlk:\t{0:016x}\nSigIgn:\t{ignored:016x}\n".encode())
    assert found.ignored == [signal.SIGHUP]


def test_ctrl_z_stops_both_and_both_go_on(world: World, tmp_path: Path) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"))
    pid = told(child)["pid"]
    child.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(child.pid) == state_of(pid) == "T", "both are stopped")
    child.send_signal(signal.SIGCONT)
    wait_until(lambda: "T" not in (state_of(child.pid), state_of(pid)), "both go on")
    (tmp_path / "go").touch()
    assert child.wait(20) == 7


def test_the_command_of_a_killed_client_is_interrupted(world: World, tmp_path: Path) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"))
    pid = told(child)["pid"]
    child.kill()
    wait_until(lambda: not alive(pid), "the command has ended")
    assert (tmp_path / "go.interrupted").exists()


def test_a_command_goes_on_when_the_ready_process_is_killed(world: World, tmp_path: Path) -> None:
    server = world.serve()
    child = world.ask("wait", str(tmp_path / "go"))
    pid = told(child)["pid"]
    os.killpg(server.pid, signal.SIGKILL)  # as the owner of the stack ends what it started
    server.wait()
    assert alive(pid)
    (tmp_path / "go").touch()
    assert child.wait(20) == 7


def test_a_lost_command_is_told_of_and_never_begun_again(world: World, tmp_path: Path) -> None:
    world.serve()
    child = world.ask("wait", str(tmp_path / "go"))
    found = told(child)
    os.kill(found["keeper"], signal.SIGKILL)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (1, "")
    assert "[ready_lost]" in err
    wait_until(lambda: not alive(found["pid"]), "the command has ended")
    assert (tmp_path / "go.interrupted").exists()


def test_what_fails_once_it_has_begun_is_not_begun_again(world: World) -> None:
    world.serve("ready._keep = lambda *_: os._exit(1)")
    code, out, err = world.answer("exit", "0")
    assert (code, out, "[ready_lost]" in err) == (1, "", True)


# ── when it goes the ordinary way ─────────────────────────────────────────────────────────────────


ORDINARY = (99, "ordinary\n", "")


def test_without_a_ready_process_or_with_a_dead_one_it_goes_the_ordinary_way(world: World) -> None:
    assert world.answer("exit", "0") == ORDINARY
    server = world.serve()
    assert world.answer("exit", "0")[0] == 0
    server.kill()
    server.wait()
    assert world.socket.exists(), "a socket that nobody listens on"
    assert world.answer("exit", "0") == ORDINARY
    world.serve()
    assert world.answer("exit", "0")[0] == 0, "and a new one takes its place"


def test_told_to_end_it_takes_its_socket_along(world: World) -> None:
    server = world.serve()
    server.terminate()
    assert server.wait(20) == 0
    assert not world.socket.exists()


@pytest.mark.parametrize(
    ("first", "differs"),
    [
        ("errand._code = lambda: 'of another version'", "code"),
        ("sys.path.append('/elsewhere')", "path"),
        ("sys.executable += '3'", "python"),
        ("import os; os.nice(1)", "niceness"),
        ("import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # may gain no rights any more", "identity"),
        ("import os; os.environ['LD_LIBRARY_PATH'] = '/elsewhere'", "environment"),
    ],
)
def test_where_the_command_might_do_something_else_it_goes_the_ordinary_way(
    world: World, first: str, differs: str
) -> None:
    server = world.serve()
    assert world.answer("exit", "0", first=first) == ORDINARY
    server.kill()
    assert f"differs in: {differs}" in server.communicate()[1]


def test_neither_side_deals_with_another_user(world: World) -> None:
    server = world.serve("os.geteuid = lambda: 12345")
    assert world.answer("exit", "0") == ORDINARY
    server.terminate()
    server.wait()
    world.serve()
    assert world.answer("exit", "0", first="ask.peer = lambda line: (1, 12345)") == ORDINARY
    assert world.answer("exit", "0")[0] == 0
    assert (world.socket.stat().st_mode & 0o777, world.socket.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    world.socket.parent.chmod(0o755)
    assert world.answer("exit", "0") == ORDINARY, "others may have put the socket there"


def test_a_limit_that_cannot_be_had_there_is_found_before_anything_begins(world: World) -> None:
    world.serve("ready.errand.limits = lambda: iter(())\nresource = ready.resource\n"
                "def refuse(*_): raise ValueError('not allowed to raise maximum limit')\n"
                "resource.setrlimit = refuse")  # fmt: skip
    assert world.answer("exit", "0") == ORDINARY


def test_a_stopped_one_is_not_waited_for(world: World) -> None:
    server = world.serve()
    server.send_signal(signal.SIGSTOP)
    assert world.answer("exit", "0", first="ask.ANSWER_S = 0.1") == ORDINARY
    server.send_signal(signal.SIGCONT)
    assert world.answer("exit", "4")[0] == 4, "who gave up left nothing behind"


@pytest.mark.parametrize("words", [(), ("up",), ("down",), ("--version",), ("-h",)])
def test_what_runs_the_stack_or_needs_nothing_of_it_does_not_ask(world: World, words: tuple[str, ...]) -> None:
    world.serve()
    assert world.answer(*words) == ORDINARY


def test_many_descriptors_are_not_handed_over(world: World) -> None:
    world.serve()
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(errand.MOST_FDS)]
    try:
        assert world.answer("exit", "0", pass_fds=kept) == ORDINARY
    finally:
        for fd in kept:
            os.close(fd)


def test_the_home_of_a_config_file_is_found(world: World, tmp_path: Path) -> None:
    world.serve()
    (tmp_path / "dlpipe.toml").write_text(f'home = "{world.home}"\n')
    assert world.answer("exit", "5", env={"DLPIPE_HOME": ""}, cwd=tmp_path)[0] == 5
    (tmp_path / "dlpipe.toml").write_text("not TOML")
    assert world.answer("exit", "5", env={"DLPIPE_HOME": ""}, cwd=tmp_path) == ORDINARY


def test_a_home_of_a_long_path_is_served_as_well(home: Path) -> None:
    world = World(home / ("x" * 120))
    try:
        world.serve()
        assert world.answer("exit", "6")[0] == 6
        assert world.socket.parent.name.startswith("dlpipe-")
    finally:
        world.end()
        world.socket.unlink()
        world.socket.parent.rmdir()


# ── the ready process itself ──────────────────────────────────────────────────────────────────────


def test_a_client_that_says_nothing_or_nonsense_holds_up_nobody(world: World) -> None:
    world.serve()
    sent: Callable[[socket.socket], object]
    for sent in (
        lambda line: None,
        lambda line: line.sendall(b"G" * 100),
        lambda line: (socket.send_fds(line, [b"H"], [0]), line.sendall((3).to_bytes(4, "big") + b"abc")),
        lambda line: (socket.send_fds(line, [b"H"], [0]), line.sendall((1 << 31).to_bytes(4, "big"))),
    ):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(world.socket))
            sent(line)
            assert world.answer("exit", "3")[0] == 3


def test_a_process_with_threads_does_not_serve(world: World) -> None:
    server = world.serve("import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
    _, err = server.communicate(timeout=20)
    assert (server.returncode, "must not be forked" in err) == (1, True)


def test_what_is_packed_comes_out_again() -> None:
    parts: list[list[str]] = [["m"], ["a", ""], [], ["p", "q"], ["", "", ""], ["1 2 3"], [], ["0"], ["18"]]
    whole = errand.Errand(*parts)
    again = errand.Errand.unpacked(whole.packed())
    assert [getattr(again, name) for name in errand.Errand.__slots__] == [
        getattr(whole, name) for name in errand.Errand.__slots__
    ]
    for broken in (b"", b"1", b"x", whole.packed() + b"\x000", whole.packed()[:-4]):
        with pytest.raises(ValueError, match=r".*"):
            errand.Errand.unpacked(broken)
