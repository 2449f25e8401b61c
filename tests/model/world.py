"""What the model remembers: one job's row, its ops, the lock in Redis, messages, two workers, and files.

Small on purpose: a file has two pieces, time is only "over" or "not over", and numbers count only by their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dlpipe.core.states import State

Bytes = tuple[str, ...]
"""The pieces of a file by the version of the server's file they came from; `x`: damaged, `.`: nothing yet."""
WHOLE = 2
EMPTY: Bytes = (".",) * WHOLE
GONE = 2
"""The token of a holder that is no more; 0 and 1 are those of the two workers."""


class Row(NamedTuple):
    """`artifact_jobs` (db/schema.py)."""

    state: State = State.PLANNED
    run: int = 0
    due: bool = True
    published: bool = False
    owner: int | None = None
    live: bool = False
    """`lease_until` is yet to come."""
    fence: int = 0
    attempts: int = 0
    purpose: str = ""
    """Why a further run of a finished job is wanted."""
    paused: bool = False


class Op(NamedTuple):
    """`artifact_ops`. The key is the kind and what LEDGER-2 names beside the job: a run or a hash."""

    key: tuple[str, Any]
    done: bool
    run: int
    fence: int
    result: Any = None
    failed: bool = False


class Part(NamedTuple):
    """What lies under the part's name in staging: a file, and the sidecar that vouches for its first pieces."""

    file: int
    fence: int
    vouched: Bytes = ()


class Worker(NamedTuple):
    """A process between two steps. `at` is the step it will do next; `idle`: it waits for a message."""

    at: str = "idle"
    stage: str = ""
    run: int = 0
    fence: int = -1
    """-1: it has claimed nothing."""
    goes_on: bool = False
    placed: bool = False
    """When it claimed, the op had been started before and its file was in its place."""
    sha: Bytes = ()
    """The hash that this stage works on; the bytes themselves stand for it."""
    file: int = -1
    """The part file that it has open, and locked."""
    version: str = ""
    """Which file the server is sending it."""
    lost: int = 0
    """1: its lease is over, which its next check will find; 2: and it has done a step since."""
    stopped: bool = False
    unlocked: bool = False
    """It went past a lock that somebody held; only where the lock is no guard."""
    robbed: bool = False
    """The disk has lost the file that it was giving its name."""
    half: bool = False
    """It was stopped within a heartbeat: the lock is extended, the row not yet."""


IDLE = Worker()


class World(NamedTuple):
    row: Row = Row()
    lock: int | None = None
    messages: tuple[tuple[str, int], ...] = ()
    workers: tuple[Worker, Worker] = (IDLE, IDLE)
    ops: tuple[Op, ...] = ()
    part: Part | None = None
    files: tuple[Bytes, ...] = ()
    finals: tuple[tuple[Bytes, int], ...] = ()
    """Final names, each the hash of what it should hold, and the file that it holds."""
    server: str = "a"
    artifacts: tuple[Bytes, ...] = ()
    slow: int | None = None
    """The fence that a slow reconcile has seen, and is about to act on."""
    looked: tuple[int, Bytes] | None = None
    """The same of one that misses a file: the fence, and which."""
    marked: tuple[tuple[Bytes, bool], ...] = ()
    """Artifacts whose file is known to be lost, and whether the job was reopened for it."""
    faults: int = 0
    """How many more things may go wrong."""
    holder: int | None = None
    """Who claimed last and has not let go: known to the model alone, and what the fence must agree with."""

    def op(self, key: tuple[str, Any]) -> Op | None:
        return next((op for op in self.ops if op.key == key), None)

    def under_way(self) -> bool:
        """Does an op count as being worked on? Not one that is finished, has failed, or was overtaken."""
        return any(not op.done and not op.failed and op.fence >= self.row.fence for op in self.ops)

    def with_op(self, op: Op) -> World:
        return self._replace(ops=tuple(sorted([o for o in self.ops if o.key != op.key] + [op])))

    def with_worker(self, me: int, worker: Worker) -> World:
        return self._replace(workers=(worker, self.workers[1]) if me == 0 else (self.workers[0], worker))

    def sent(self, stage: str, run: int) -> World:
        return self._replace(messages=tuple(sorted([*self.messages, (stage, run)])))

    def final(self, name: Bytes) -> int | None:
        return next((file for known, file in self.finals if known == name), None)

    def is_right(self, name: Bytes) -> bool:
        file = self.final(name)
        return file is not None and self.files[file] == name

    def newest(self) -> Bytes | None:
        """The result that was registered last."""
        done = [op for op in self.ops if op.key[0] == "INDEX" and op.done]
        return max(done, key=lambda op: op.fence).result if done else None

    def new_file(self, holds: Bytes = EMPTY) -> tuple[World, int]:
        return self._replace(files=(*self.files, holds)), len(self.files)


def canonical(world: World) -> World:
    """One world for all that differ only in names: which worker is which, how high a fence is, a file's number."""
    needed = (_needed(world.workers[0]), _needed(world.workers[1]))
    if needed != world.workers:
        world = world._replace(workers=needed)
    one, other = (_order(world, me) for me in (0, 1))
    if one == other:
        mine, theirs = _plain(world), _plain(_exchanged(world))
        return mine if hash(mine) <= hash(theirs) else theirs
    return _plain(world if one < other else _exchanged(world))


def _order(world: World, me: int) -> tuple[Any, ...]:
    worker = world.workers[me]
    return (*worker[:7], *worker[8:], world.lock == me, world.row.owner == me, world.holder == me)


def _exchanged(world: World) -> World:
    def other(token: int | None) -> int | None:
        return 1 - token if token in (0, 1) and token is not None else token

    return world._replace(
        row=world.row._replace(owner=other(world.row.owner)),
        lock=other(world.lock),
        holder=other(world.holder),
        workers=(world.workers[1], world.workers[0]),
    )


def _plain(world: World) -> World:
    row, part, workers = world.row, world.part, world.workers
    busy = {w.run for w in workers}
    ops = [o for o in world.ops if not isinstance(o.key[1], int) or o.key[1] >= row.run or o.key[1] in busy]
    ops = [_settled(o, ops, workers) for o in ops]
    fences = {row.fence, *(w.fence for w in workers if w.fence >= 0), *(o.fence for o in ops if o.fence >= 0)}
    fences |= {w.fence + 1 for w in workers if w.at == "owes"}  # an answer that is lost owes two
    if part is not None:
        fences.add(part.fence)
    if world.slow is not None:
        fences.add(world.slow)
    if world.looked is not None:
        fences.add(world.looked[0])
    rank = {fence: number for number, fence in enumerate(sorted(fences))}
    rank[-1] = -1
    order: dict[int, int] = {}
    for file in (
        *((part.file,) if part else ()),
        *(file for _, file in world.finals),
        *(w.file for w in workers if w.file >= 0),
    ):
        order.setdefault(file, len(order))
    files = tuple(world.files[file] for file in order)
    order[-1] = -1
    # Spelled out: this is where the time of a walk goes, and most of it stays as it is.
    one, other = (
        w
        if rank[w.fence] == w.fence and order[w.file] == w.file
        else w._replace(fence=rank[w.fence], file=order[w.file])
        for w in workers
    )
    return World(
        row if rank[row.fence] == row.fence else row._replace(fence=rank[row.fence]),
        world.lock,
        world.messages,
        (one, other),
        tuple([_ranked(o, rank.get(o.fence, o.fence)) for o in ops]),
        part and Part(order[part.file], rank[part.fence], part.vouched),
        files,
        tuple([(name, order[file]) for name, file in world.finals]),
        world.server,
        world.artifacts,
        None if world.slow is None else rank[world.slow],
        None if world.looked is None else (rank[world.looked[0]], world.looked[1]),
        world.marked,
        world.faults,
        world.holder,
    )


def _ranked(op: Op, fence: int) -> Op:
    return op if op.fence == fence else Op(op.key, op.done, op.run, fence, op.result, op.failed)


def _needed(worker: Worker) -> Worker:
    """Without what no later step looks at."""
    match worker.at:
        case "leave" if worker.goes_on:
            return Worker("leave", worker.stage, worker.run, goes_on=True, stopped=worker.stopped)
        case "leave" | "giveup" | "owes":
            fence = -1 if worker.at == "leave" else worker.fence
            return Worker(worker.at, fence=fence, stopped=worker.stopped, half=worker.half)
        case "record" if worker.placed or worker.version:
            return worker._replace(placed=False, version="")
        case _:
            return worker


def _settled(op: Op, ops: list[Op], workers: tuple[Worker, ...]) -> Op:
    """The fence of a finished op counts where somebody still has it; else only which is the newest of its kind."""
    if not op.done or (op.fence >= 0 and op.fence in (workers[0].fence, workers[1].fence)):
        return op
    kind, newer = op.key[0], 0
    for o in ops:
        if o.fence > op.fence and o.done and o.key[0] == kind:
            newer += 1
    return _ranked(op, -1 - newer)
