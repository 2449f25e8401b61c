"""The system-call sweep: each call to the file system that a stage makes, killed before it, and answered with errors.

    python -m tests.crash.sweep                  every call of finalize, of dedupe, and of a known URL's copy
    python -m tests.crash.sweep --few            one way of each: the kill, or one error

strace(1) attaches to a worker that has stopped itself before the stage, and counts. Who comes next must find its way.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.kinds import KINDS, Kind
from tests.crash.matrix import SURVIVED, heal, prepare
from tests.crash.site import Site, SqliteLedgers
from tests.servers import Valkey, wait_until

NAMES = (
    "openat", "mkdir", "mkdirat", "link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "fsync", "fdatasync", "fchmod", "pwrite64", "write", "ftruncate", "flock",
)  # fmt: skip
_NO_SPACE = {"openat", "mkdir", "mkdirat", "link", "linkat", "rename", "renameat", "renameat2", "pwrite64", "write"}
_NO_ERROR = {"flock"}
"""Some file systems have no locks, and that is no fault (NFS)."""
STAGES = (("fresh", "finalize"), ("standing", "finalize"), ("twin", "dedupe"), ("known-copy", "head"))
_LINE = re.compile(r"^(?:\[pid +)?\d*\]? *(\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Strike:
    """What strace does to the n-th call of that name."""

    name: str
    number: int
    what: str
    """`kill`, or the name of an error."""

    @property
    def option(self) -> str:
        does = "signal=KILL" if self.what == "kill" else f"error={self.what}"
        return f"inject={self.name}:{does}:when={self.number}"

    def __str__(self) -> str:
        return f"{self.name} {self.number} {self.what}"


def missing() -> str | None:
    """Why nothing can be swept here."""
    if shutil.which("strace") is None:
        return "no strace to inject faults with: install the Debian package strace"
    return None


def allowed() -> bool:
    """May a process be traced here by somebody who did not start it?"""
    child = subprocess.Popen(["sleep", "60"])
    try:
        tracer = subprocess.Popen(["strace", "-qq", "-p", str(child.pid), "-o", os.devnull], stderr=subprocess.DEVNULL)
        wait_until(lambda: tracer.poll() is not None or _traced(child.pid), "strace to attach, or to be refused")
        refused = tracer.poll() is not None
        tracer.kill()
        tracer.wait()
        return not refused
    finally:
        child.kill()
        child.wait()


def strikes(counts: Counter[str], few: bool) -> Iterator[Strike]:
    for name in NAMES:
        for number in range(1, counts[name] + 1):
            ways = ["kill"]
            if name not in _NO_ERROR:
                ways.append("EIO")
            if name in _NO_SPACE:
                ways.append("ENOSPC")
            yield from (Strike(name, number, way) for way in (ways if not few else [ways[number % len(ways)]]))


def traced_work(site: Site, kind: Kind, stage: str, strike: Strike | None) -> tuple[int, str]:
    """A worker in a process of its own, looked at during one stage; its exit code, and what strace wrote."""
    trace = site.root.parent / "trace"
    trace.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _work_until_done_with(site, kind, stage)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the worker did not come to {stage}: {status}"
    options = ["-e", strike.option] if strike else []
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-p", str(child), "-o", str(trace), "-e", f"trace={','.join(NAMES)}", *options],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: _traced(child) or tracer.poll() is not None, "strace to attach")
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    finally:
        try:
            tracer.wait(10)
        except subprocess.TimeoutExpired:
            tracer.kill()
            tracer.wait()
        assert tracer.stderr is not None
        tracer.stderr.close()
    return os.waitstatus_to_exitcode(status), trace.read_text(errors="replace") if trace.exists() else ""


def _work_until_done_with(site: Site, kind: Kind, stage: str) -> None:
    looked_at = False

    def at(step: str) -> None:
        nonlocal looked_at
        if looked_at:
            os._exit(SURVIVED)
        if step == stage:
            looked_at = True
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        with site.worker(kind.dress) as world:
            kind.work(world, at)
            os._exit(SURVIVED)
    finally:
        os._exit(SURVIVED + 1)


def _traced(pid: int) -> bool:
    try:
        return re.search(r"^TracerPid:\t[1-9]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None
    except FileNotFoundError:
        return False


def sweep(few: bool) -> Iterator[tuple[str, Strike, list[str]]]:
    """Every strike, and what was wrong after it had been healed."""
    with tempfile.TemporaryDirectory(prefix="dls", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        place = Path(made)
        (place / "v").mkdir()
        with Valkey(place / "v") as valkey:
            site = Site(place, SqliteLedgers(place), valkey)
            for name, stage in STAGES:
                kind = next(kind for kind in KINDS if kind.name == name)
                prepare(site, kind)
                code, trace = traced_work(site, kind, stage, None)
                assert code == SURVIVED, code
                counts = Counter(_LINE.findall(trace))
                assert counts.total() > 10, f"strace saw too little:\n{trace}"
                for strike in strikes(counts, few):
                    yield f"{name}/{stage}", strike, _strike(site, kind, stage, strike)


def _strike(site: Site, kind: Kind, stage: str, strike: Strike) -> list[str]:
    job_id = prepare(site, kind)
    code, trace = traced_work(site, kind, stage, strike)
    if strike.what == "kill" and code != -signal.SIGKILL:
        return [f"the worker was not killed: {code}"]
    if strike.what != "kill" and "(INJECTED)" not in trace:
        return ["no call was answered with the error"]
    try:
        return heal(site, kind, job_id)[1]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", action="store_true", help="each call in one way only")
    options = parser.parse_args()
    if reason := missing():
        print(f"the sweep is left out: {reason}", file=sys.stderr)
        return 2
    if not allowed():
        print("the sweep is left out: this machine lets nobody trace a process", file=sys.stderr)
        return 0
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    said: Counter[tuple[str, str, str]] = Counter()
    bad = 0
    for where, strike, wrong in sweep(options.few):
        if not any(seen == where for seen, _, _ in said):
            print(f"striking {where}", file=sys.stderr)
        said[where, strike.name, strike.what] += 1
        if wrong:
            bad += 1
            print(f"VIOLATED {where} {strike}\n    " + "\n    ".join(wrong))
    ways = ("kill", "EIO", "ENOSPC")
    print(f"{'stage':<18}{'call':<12}" + "".join(f"{way:>8}" for way in ways))
    for where, name in sorted({key[:2] for key in said}):
        print(f"{where:<18}{name:<12}" + "".join(f"{said[where, name, way]:>8}" for way in ways))
    print(f"{said.total()} strikes, {bad} violated, in {time.monotonic() - began:.0f} s")
    return 1 if bad or not said else 0


if __name__ == "__main__":
    sys.exit(main())
