"""Children: timed ones, lasting ones, and ones that answer lines. Each is ended by its pid, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlpipe.embedded.tether import tethered
from ops.bench.failure import Absent, BenchFailed

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".bench" / "venv"
END_S = 30.0
_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str, package: str) -> str:
    """Where a program is; Absent names the Debian package that brings it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")
    if found is None:
        raise Absent(f"not installed: {name} (Debian package {package})")
    return found


def peers_python() -> str:
    """The interpreter of the peers' own environment (ops/bench/setup.sh)."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        raise Absent("not installed: the peers' packages (sh ops/bench/setup.sh)")
    return str(python)


def environment(home: Path, **more: str) -> dict[str, str]:
    """A bare one: nothing of the caller's settings reaches what is measured."""
    return {
        "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def timed(argv: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float) -> tuple[float, str]:
    """How long it took from start to end, and what it printed; BenchFailed when it did not end well."""
    began = time.monotonic()
    with _group(argv, env, cwd) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"{argv[0]} took more than {timeout_s:.0f} s") from None
        took = time.monotonic() - began
    if child.returncode:
        raise BenchFailed(f"{' '.join(argv)[:300]} ended with {child.returncode}:\n{(out + err)[-2000:]}")
    return took, out


@contextmanager
def _group(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """In a group of its own, so that Ctrl-C reaches us alone and we end all of it."""
    child = subprocess.Popen(
        argv, env=dict(env), cwd=cwd, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


class Lasting:
    """A server or a worker: runs until the block ends, and dies with this process."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(
                tethered(argv), env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._child.pid

    def until(self, text: str, within_s: float = 60.0) -> None:
        """Wait until its log says so."""
        ends = time.monotonic() + within_s
        while text not in (said := self.log.read_text(errors="replace")):
            if self._child.poll() is not None or time.monotonic() > ends:
                raise BenchFailed(f"{self.name} did not say {text!r}:\n{said[-2000:]}")
            time.sleep(0.02)

    def __enter__(self) -> Lasting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Driver:
    """A child that answers each line of JSON with one: it stands ready, so that its own start is not measured."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as err:
            self._child = subprocess.Popen(
                tethered(argv), env=dict(env), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self._left = b""

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            raise self._failed("does not listen") from None

    def hear(self, within_s: float) -> dict[str, Any]:
        assert self._child.stdout is not None
        ends = time.monotonic() + within_s
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, ends - time.monotonic()))
            piece = os.read(self._child.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                raise self._failed("ended" if ready else f"did not answer within {within_s:.0f} s")
            self._left += piece
        line, _, self._left = self._left.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, message: Mapping[str, Any], within_s: float = 600.0) -> dict[str, Any]:
        self.tell(message)
        return self.hear(within_s)

    def _failed(self, how: str) -> BenchFailed:
        return BenchFailed(f"{self.name} {how}:\n{self._log.read_text(errors='replace')[-3000:]}")

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()  # the end of its lines is the end of its work
        if kind is not None:
            self._child.kill()  # nobody waits for what it is in the middle of
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


def answer_lines(answer: Any) -> None:
    """What a driver of ours does: one answer for each line, until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
