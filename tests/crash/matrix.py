"""The crash matrix: each crash point that a job passes, in each step that passes it, times each fault and engine.

    python -m tests.crash.matrix                 everything, over two processes
    python -m tests.crash.matrix --few           one cell for each point and fault
    python -m tests.crash.matrix --cell 'fresh/stream/stream.chunk/2/killed/sqlite'

A dry run of each kind of job says which points it passes, and what comes between them; so no list of cells is kept.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlpipe.core import crash, flow, states
from dlpipe.core.ports import Hint
from dlpipe.core.states import State
from dlpipe.pipeline import planner
from dlpipe.pipeline.reconcile import reconcile
from tests import postgres as postgres_server
from tests.crash.ends import violations
from tests.crash.faults import BAD_DISK, NO_SPACE, Bug, Disk, Fault, FaultyDatabase
from tests.crash.kinds import KINDS, URL, Kind
from tests.crash.site import PostgresLedgers, Site, SqliteLedgers
from tests.postgres import Postgres
from tests.servers import Valkey
from tests.world import World, carry_out

_IN_FULL = ("fresh", "twin", "known")
"""On SQLite every kind is played in full; on PostgreSQL these, and of the others a third."""
ENGINES = ("sqlite", "postgresql")
ROUNDS = 4
"""Of reconcile, after which a job must be at its end; one more must then find nothing to do."""
SURVIVED = 7
_HOLDS_UP = "part.half_removed"
"""Whoever is stopped here has the part locked and no sidecar that names him: the others are postponed until he ends."""
_STAGES = frozenset(row.name for row in flow.STAGES)


@dataclass(frozen=True, order=True)
class Passage:
    """A point that is passed, in the step of a worker's work in which that happens, for the `time`-th time."""

    step: str
    point: str
    time: int


@dataclass
class Passed:
    """What a dry run saw of a passage."""

    passage: Passage
    writing: bool
    """In the middle of a transaction."""
    alone: bool
    """While a lock is held that others wait for."""
    calls: set[str] = field(default_factory=set)
    """Of the file system, between this point and the next."""


@dataclass(frozen=True, order=True)
class Cell:
    kind: str
    passage: Passage
    fault: Fault
    engine: str

    def __str__(self) -> str:
        at = self.passage
        return f"{self.kind}/{at.step}/{at.point}/{at.time}/{self.fault}/{self.engine}"


class Hook:
    """Counts the points that a worker passes, and calls `fire` at one of them."""

    def __init__(self) -> None:
        self.step = ""
        self.counts: Counter[tuple[str, str]] = Counter()

    def begin(self, step: str) -> None:
        self.step = step

    def __call__(self, point: str) -> None:
        self.counts[self.step, point] += 1
        self.passed(Passage(self.step, point, self.counts[self.step, point]))

    def passed(self, passage: Passage) -> None:
        raise NotImplementedError


class Watch(Hook):
    """A dry run's."""

    def __init__(self, world: World, disk: Disk) -> None:
        super().__init__()
        self._world = world
        self.seen: list[Passed] = []
        self.alone = False
        disk.heard = lambda name: self.seen[-1].calls.add(name) if self.seen else None

    def passed(self, passage: Passage) -> None:
        database = self._world.database
        assert isinstance(database, FaultyDatabase)
        self.seen.append(Passed(passage, database.writing > 0, self.alone))

    @contextmanager
    def locks(self) -> Iterator[None]:
        """Notice when a lock is held for which others would have to wait."""
        real = fcntl.flock

        def flock(fd: Any, operation: int) -> None:
            real(fd, operation)
            if not operation & fcntl.LOCK_NB:
                self.alone = bool(operation & fcntl.LOCK_EX)

        fcntl.flock = flock
        try:
            yield
        finally:
            fcntl.flock = real


class Trap(Hook):
    """A faulty run's."""

    def __init__(self, cell: Cell, fire: Any) -> None:
        super().__init__()
        self._at, self._fire = cell.passage, fire
        self.sprung = False

    def passed(self, passage: Passage) -> None:
        if not self.sprung and passage == self._at:
            self.sprung = True
            self._fire()


# ── which cells there are ─────────────────────────────────────────────────────────────────────────


def dry_run(site: Site, kind: Kind) -> list[Passed]:
    """What a worker passes to which nothing else happens."""
    job_id = prepare(site, kind)
    disk = Disk()
    with site.worker(kind.dress) as world:
        watch = Watch(world, disk)
        crash.arm(watch)
        try:
            with disk.watched(), watch.locks():
                kind.work(world, watch.begin)
        finally:
            crash.arm(None)
    _, wrong = heal(site, kind, job_id)
    assert not wrong, f"{kind.name}, and nothing happened to it: {wrong}"
    return watch.seen


def cells_of(kind: Kind, engine: str, seen: list[Passed]) -> Iterator[Cell]:
    last = {(one.passage.step, one.passage.point): one.passage.time for one in seen}
    for one in seen:
        at = one.passage
        if kind.stages and at.step not in kind.stages:
            continue
        # Of a point that is passed again and again, the first and the last time.
        if at.time not in (1, last[at.step, at.point]):
            continue
        for fault in Fault:
            cell = Cell(kind.name, at, fault, engine)
            if _applies(fault, one):
                yield cell


def _number(cell: Cell) -> int:
    """The same in every process, and without a pattern."""
    return int.from_bytes(hashlib.sha256(str(cell).encode()).digest()[:8])


def _applies(fault: Fault, one: Passed) -> bool:
    match fault:
        case Fault.FSYNC:
            return bool(one.calls & set(Disk.FSYNC))
        case Fault.NO_SPACE:
            return bool(one.calls & set(Disk.SPACE))
        case Fault.KILLED_SENT_AGAIN | Fault.LEASE:
            return one.passage.step in _STAGES
        case Fault.OVERTAKEN:
            return not one.writing and not one.alone and one.passage.point != _HOLDS_UP
        case _:
            return True


def few(cells: Iterable[Cell]) -> list[Cell]:
    """One for each point and fault, spread over kinds and engines."""
    chosen: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=_number):
        chosen.setdefault((cell.passage.point, cell.fault), cell)
    return list(chosen.values())


# ── one cell ──────────────────────────────────────────────────────────────────────────────────────


def prepare(site: Site, kind: Kind) -> str:
    """Bring the job of that kind to where a worker comes to it; answer its id."""
    site.fresh()
    with site.other(kind.dress) as world:
        kind.prepare(world)
        return planner.spec(world.deps, {"url": URL}).job_id


@dataclass
class Outcome:
    cell: Cell
    wrong: list[str]
    rounds: int = 0
    """How many rounds of reconcile it took."""


def play(site: Site, cell: Cell) -> Outcome:
    """Let the fault happen to a worker; then heal, and look."""
    kind = next(kind for kind in KINDS if kind.name == cell.kind)
    job_id = prepare(site, kind)
    wrong: list[str] = []
    rounds = 0
    try:
        if cell.fault in (Fault.KILLED, Fault.KILLED_SENT_AGAIN):
            _killed(site, kind, cell)
        else:
            wrong += _struck(site, kind, cell, job_id)
        site.mend()
        if cell.fault is Fault.REDIS:
            site.redis.flushall()
        again = cell.passage.step if cell.fault is Fault.KILLED_SENT_AGAIN else ""
        rounds, found = heal(site, kind, job_id, again)
        wrong += found
    except Exception:
        wrong.append(traceback.format_exc())
    return Outcome(cell, wrong, rounds)


def _killed(site: Site, kind: Kind, cell: Cell) -> None:
    """In a process of its own, forked while this one has neither threads nor connections in use."""
    child = os.fork()
    if child == 0:
        try:
            trap = Trap(cell, lambda: os.kill(os.getpid(), signal.SIGKILL))
            crash.arm(trap)
            with site.worker(kind.dress) as world:
                kind.work(world, trap.begin)
        finally:
            os._exit(SURVIVED)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"the worker lived on: {status}"


def _struck(site: Site, kind: Kind, cell: Cell, job_id: str) -> list[str]:
    """In this process; what follows the fault is the worker's own doing."""
    wrong: list[str] = []
    disk = Disk()
    with site.worker(kind.dress) as world:
        before: list[Any] = []
        database = world.database
        assert isinstance(database, FaultyDatabase)

        def fire() -> None:
            match cell.fault:
                case Fault.EXCEPTION:
                    raise Bug("what is in here may be a secret")
                case Fault.FSYNC:
                    disk.fail(Disk.FSYNC, BAD_DISK)
                case Fault.NO_SPACE:
                    disk.fail(Disk.SPACE, NO_SPACE)
                case Fault.DATABASE:
                    database.go()
                case Fault.ANSWER:
                    database.mute = True
                case Fault.REDIS:
                    site.cut_redis(world)
                case Fault.LEASE:
                    _lose(site, world, job_id)
                case Fault.OVERTAKEN:
                    crash.arm(None)
                    heal(site, kind, job_id)
                    before.append(_everything(site, kind))
                case fault:
                    raise ValueError(fault)

        trap = Trap(cell, fire)
        crash.arm(trap)
        try:
            with disk.watched():
                kind.work(world, trap.begin)
        except Exception as error:  # a task that raises: the broker's message is gone, and nothing else
            logging.getLogger(__name__).info("%s raised %s", cell, type(error).__name__)
        finally:
            crash.arm(None)
        if not trap.sprung:
            wrong.append("the point was not passed")
        if cell.fault in (Fault.FSYNC, Fault.NO_SPACE) and not disk.hits:
            wrong.append("no call was answered with the error")
        if before and before[0] != _everything(site, kind):
            wrong.append("the worker that was overtaken has changed something")
    return wrong


def _lose(site: Site, world: World, job_id: str) -> None:
    leases: Any = world.deps.leases
    site.redis.set(f"dlpipe:lease:{job_id}", "somebody.else")
    for lease in leases.heartbeat.held():
        lease.lose("somebody else has it")


def _everything(site: Site, kind: Kind) -> tuple[Any, Any]:
    """What counts: all rows and the files of the store. A late worker may well leave a part, for the healer."""
    with site.other(kind.dress) as world:
        return world.everything(), world.blobs()


def heal(site: Site, kind: Kind, job_id: str, again: str = "") -> tuple[int, list[str]]:
    """What the others do from then on: after how many rounds of reconcile the job was at its end, and what is wrong.

    `again`: before anything is healed, the broker hands out the message that the dead worker held in that step.
    """
    with site.other(kind.dress) as world:
        if again:
            site.pass_time(world)
            row = world.row(job_id)
            stages = flow.STAGES[[one.name for one in flow.STAGES].index(again) :]
            carry_out(world.deps, Hint(job_id, max(1, row.run), stages), in_hand=kind.in_hand)
        for rounds in range(ROUNDS + 1):
            found = world.sql("SELECT state, due_at, lease_owner FROM artifact_jobs WHERE job_id = :job", job=job_id)
            if not found:  # the plan was never committed: the caller plans again
                planner.plan(world.deps, {"url": URL})
            elif not any(found[0][1:]) and states.is_terminal(State(found[0].state), retry_due=False):
                site.pass_time(world)
                assert reconcile(world.deps).dispatched == 0
                return rounds, list(violations(world, kind, job_id))
            site.pass_time(world)
            reconcile(world.deps)
            world.drive()
        raise AssertionError(f"not at an end after {ROUNDS} rounds: {world.row(job_id)}")


# ── all of them ───────────────────────────────────────────────────────────────────────────────────


def run(options: argparse.Namespace, part: int, parts: int) -> Iterator[Outcome]:
    """Play this process's share of the cells."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlm", dir=_memory())))
        (place / "v").mkdir()
        valkey = stack.enter_context(Valkey(place / "v"))
        for engine in options.engines:
            (place / engine).mkdir()
            if engine == "sqlite":
                site = Site(place / engine, SqliteLedgers(place / engine), valkey)
            else:
                server = stack.enter_context(Postgres(place / "pg"))
                with server.connect() as admin:
                    admin.execute("ALTER ROLE postgres SET synchronous_commit = off")
                site = Site(place / engine, PostgresLedgers(server, place / engine), valkey)
            kinds = [kind for kind in KINDS if not options.kinds or kind.name in options.kinds]
            cells = [cell for kind in kinds for cell in cells_of(kind, engine, dry_run(site, kind))]
            if options.few:
                cells = few(cells)
            elif engine != "sqlite" and not options.cell:
                cells = [cell for cell in cells if cell.kind in _IN_FULL or _number(cell) % 3 == 0]
            if options.faults:
                cells = [cell for cell in cells if cell.fault in options.faults]
            if options.cell:
                cells = [cell for cell in cells if str(cell) in options.cell]
            for cell in cells[part::parts]:
                yield play(site, cell)


def _memory() -> str | None:
    """A file system without a disk, where there is one: this is about order, not about platters."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", action="store_true", help="one cell for each point and fault")
    parser.add_argument("--engine", dest="engines", choices=ENGINES, action="append")
    parser.add_argument("--kind", dest="kinds", choices=[kind.name for kind in KINDS], action="append")
    parser.add_argument("--fault", dest="faults", choices=list(Fault), action="append")
    parser.add_argument("--cell", action="append", help="play this cell alone, as it was named in a report")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.engines = options.engines or list(ENGINES)
    if "postgresql" in options.engines and (reason := postgres_server.missing()):
        print(f"the crash matrix needs PostgreSQL: {reason}", file=sys.stderr)
        return 2
    if options.part:
        part, parts = map(int, options.part.split("/"))
        logging.disable(logging.CRITICAL)
        for outcome in run(options, part, parts):
            cell = outcome.cell
            said = [str(cell), cell.kind, cell.fault, cell.engine, cell.passage.point, outcome.rounds, outcome.wrong]
            print(json.dumps(said), flush=True)
        return 0
    return _gather(options)


def _gather(options: argparse.Namespace) -> int:
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.crash.matrix", *sys.argv[1:]]
    parts = [
        subprocess.Popen([*command, "--part", f"{n}/{options.processes}"], stdout=subprocess.PIPE, text=True)
        for n in range(options.processes)
    ]
    said: list[Any] = []
    for process in parts:
        assert process.stdout is not None
        said += [json.loads(line) for line in process.stdout]
    crashed = [process.wait() for process in parts]
    wrong = [one for one in said if one[-1]]
    for name, *_, what in wrong:
        print(f"VIOLATED {name}\n    " + "\n    ".join(what))
    print(_table(said))
    took = time.monotonic() - began
    print(f"{len(said)} cells, {len(wrong)} violated, in {took:.0f} s; at most {_most(said)} rounds of healing")
    return 1 if wrong or any(crashed) or not said else 0


def _table(said: list[Any]) -> str:
    cells = Counter((fault, engine) for _, _, fault, engine, *_ in said)
    bad = Counter(fault for _, _, fault, *_, wrong in said if wrong)
    points = {fault: len({point for _, _, f, _, point, *_ in said if f == fault}) for fault in Fault}
    lines = [f"{'fault':<24}{'points':>8}{'sqlite':>8}{'postgresql':>12}{'clean':>8}{'violated':>10}"]
    for fault in Fault:
        counts = [cells[fault, engine] for engine in ENGINES]
        row = f"{fault:<24}{points[fault]:>8}{counts[0]:>8}{counts[1]:>12}"
        lines.append(f"{row}{sum(counts) - bad[fault]:>8}{bad[fault]:>10}")
    return "\n".join(lines)


def _most(said: list[Any]) -> int:
    return max((one[-2] for one in said), default=0)


if __name__ == "__main__":
    sys.exit(main())
