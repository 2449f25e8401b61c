"""The kinds of jobs that the crash matrix is run over: how each comes to be, what a worker does of it, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dlpipe.core import crash, flow
from dlpipe.core.errors import Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Scope
from dlpipe.core.ports import Claimed
from dlpipe.core.results import Result
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.states import State
from dlpipe.lease import owner
from dlpipe.pipeline import dispatch, planner, runner
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.stages import STAGES
from dlpipe.pipeline.stages.stage import Stage, Work
from dlpipe.store import Linking, LocalBlobStore
from tests.fakes.source import Page, Says
from tests.world import World, job_of, sha256, some_bytes

KIB = 1 << 10
URL = "http://files.example/big.bin"
TWIN_URL = "http://mirror.example/same.bin"
BODY = some_bytes(1280 * KIB)
OTHER = BODY[::-1]
"""Other bytes, and as many: size alone must tell nobody anything."""
CHUNK = 512 * KIB
_NOBODYS_PID = (1 << 22) + 1
"""Above what Linux gives out."""
ELSEWHERE = Scope("default", "elsewhere")

At = Callable[[str], None]
"""Told of each step that a worker begins."""


def _plan(world: World) -> None:
    world.plan(URL)


@dataclass(frozen=True)
class Kind:
    """One way for a job to be, and its end whatever happens on the way."""

    name: str
    what: str
    prepare: Callable[[World], None] = _plan
    stages: tuple[str, ...] = ()
    """The steps in which it differs from a fresh download; () means that all of them count."""
    plans: int = 0
    """How many files the worker plans, the job's last; 0: it was planned before."""
    heals: bool = False
    """The worker begins with a round of reconcile."""
    in_hand: bool = False
    """It goes on with the next stages itself, as far as it can (ADR 42)."""
    ails: str = ""
    """The stage that fails when the worker comes to it for the first time."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    linking: Linking = Linking.HARDLINK
    page: Page | None = Page(BODY, chunk=CHUNK)
    fields: Mapping[str, Any] = field(default_factory=dict)
    ends: State = State.DEDUPED
    code: str | None = None
    ops: tuple[OpType, ...] = tuple(row.op for row in flow.STAGES)
    action: str | None = "download"
    set_aside: int = 0
    """How many damaged files end up beside the store's."""

    def dress(self, world: World) -> None:
        """Give a worker the surroundings of this kind."""
        if self.page is not None:
            world.source.pages[URL] = self.page
        world.source.put(TWIN_URL, BODY, chunk=CHUNK)
        # What lies in the staging folder is old as soon as nobody holds it.
        heal = replace(world.deps.policy.heal, part_age_s=0.0)
        world.policy(heal=heal, **self.policy)
        world.deps = replace(world.deps, store=LocalBlobStore(world.root, linking=self.linking))

    def work(self, world: World, at: At) -> None:
        """What one worker does of it, from the first step to the last; a task that raises ends there."""
        if self.plans:
            at("plan")
            if self.plans == 1:
                planner.plan(world.deps, {"url": URL})
            else:
                planner.plan_many(world.deps, [{"url": URL}])
        elif self.heals:
            at("reconcile")
            reconcile(world.deps)
        else:
            at("dispatch")
            dispatch.dispatch(world.deps)
        while world.publisher.queue:
            hint = world.publisher.queue.pop(0)
            left = [row.name for row in hint.stages]
            while left:
                at(left[0])
                here = left if self.in_hand else left[:1]
                with _failing_once(self.ails) if self.ails in here else nullcontext():
                    outcome = runner.run(world.deps, here[0], hint.job_id, hint.run, here[1:])
                if not outcome.goes_on:
                    break
                left = left[max(1, len(outcome.stages)) :] if isinstance(outcome, runner.Done) else []


@contextmanager
def _failing_once(stage: str) -> Iterator[None]:
    """Its effect comes to nothing, as when the disk has trouble for a moment."""
    kind, failed = STAGES[stage], False
    perform = kind.perform

    def trouble(self: Stage, work: Work) -> Result:
        nonlocal failed
        if not failed:
            failed = True
            raise Retryable("for a moment", code="store_io_error")
        return perform(self, work)

    kind.perform = trouble  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.perform = perform  # type: ignore[method-assign]


def _cut(world: World) -> None:
    """The first run's body broke off after two chunks."""
    world.source.script(URL, Says(body=(BODY[:CHUNK], BODY[CHUNK : 2 * CHUNK], Retryable("cut", code="body_cut"))))
    job_id = world.fetch(URL)
    assert world.state(job_id) is State.FAILED
    world.make_due(job_id)


def _changed(world: World) -> None:
    """The first run's body broke off, and by now the server has another file there."""
    world.source.put(URL, OTHER, chunk=CHUNK, etag='"v0"')
    world.source.script(URL, Says(body=(OTHER[:CHUNK], OTHER[CHUNK : 2 * CHUNK], Retryable("cut", code="body_cut"))))
    job_id = world.fetch(URL)
    assert world.state(job_id) is State.FAILED
    world.make_due(job_id)


def _refused_once(world: World) -> None:
    """The first run's HEAD was answered by a server that was busy."""
    world.source.fail_head(URL, Retryable("busy", code="http_5xx"))
    job_id = world.fetch(URL)
    assert world.state(job_id) is State.FAILED
    world.make_due(job_id)


def _has_twin(world: World) -> None:
    """Another project of the tenant has the same bytes from elsewhere."""
    world.fetch(TWIN_URL, project_id=ELSEWHERE.project_id)
    world.plan(URL)


def _stands(world: World) -> None:
    """The project itself has the same bytes under another job."""
    world.fetch(TWIN_URL)
    world.plan(URL)


def _known(world: World) -> None:
    """Another project of the tenant has fetched this very URL."""
    world.fetch(URL, project_id=ELSEWHERE.project_id)
    world.plan(URL)


def _known_damaged(world: World) -> None:
    world.fetch(URL, project_id=ELSEWHERE.project_id)
    _damaged(world)


def _damaged(world: World) -> None:
    """Under the file's own name stand other bytes."""
    place = world.deps.store.place("default", "default", sha256(BODY), ".bin")
    path = world.root.joinpath(*place.folders, place.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(OTHER)
    path.chmod(0o444)
    world.plan(URL)


def _left_at(stage: str) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        """A worker vanished when it had just claimed that stage; its lease has run out."""
        job_id = world.plan(URL)
        world.run_to(stage, job_id)
        world.leave_claimed(stage, job_id)
        world.expire(job_id)

    return prepare


class Died(BaseException):
    """The process ended here."""


def _placed(world: World) -> None:
    """A worker vanished after the file had its name, and before that was recorded."""

    def die(name: str) -> None:
        if name == "finalize.after_fsync":
            raise Died

    job_id = world.plan(URL)
    world.run_to("finalize", job_id)
    crash.arm(die)
    with suppress(Died):
        world.run("finalize", job_id)
    crash.arm(None)
    world.expire(job_id)


def _dead(world: World) -> None:
    """A worker of this machine was killed; its lease runs on in the row and in Redis."""
    job_id = world.plan(URL)
    token = f"{owner.current().partition('.')[0]}.{_NOBODYS_PID}.1.x"
    with world.database.write() as unit:
        assert isinstance(unit.jobs.claim(flow.stage("head"), job_id, 1, token, 600.0), Claimed)


def _lost(world: World) -> None:
    """The message was sent, and the broker lost it."""
    job_id = world.plan(URL)
    dispatch.dispatch(world.deps)
    world.age(job_id)


def _waits_at_index(world: World) -> None:
    """The file is in its place, and the run ended before it was registered: the next does what remains."""
    job_id = world.plan(URL)
    world.run_to("index", job_id)
    world.leave_claimed("index", job_id)
    job = job_of(world, job_id)
    with world.database.write() as unit:
        assert unit.jobs.hand_back(job)


def _to_replay(world: World) -> None:
    """It is done, and to be done again from its stored file; by now the server has other bytes, which nobody wants."""
    world.source.put(URL, BODY, chunk=CHUNK)
    job_id = world.fetch(URL)
    world.source.put(URL, OTHER)
    with world.database.write() as unit:
        unit.owned(Scope()).replay(job_id, "stream")


def _wrong(world: World) -> None:
    world.plan(URL, sha256=sha256(OTHER))


_TO_HEAD = (OpType.HEAD,)
_TO_STREAM = (OpType.HEAD, OpType.RESUME)
_SEGMENTS = {"segments": SegmentPolicy(connections=2, min_bytes=1, piece_bytes=256 * KIB)}

KINDS = (
    Kind("fresh", "a URL that nobody knows"),
    Kind("planned", "the caller's own process plans it and sends it", lambda _: None, ("plan", "dispatch"), plans=1),
    Kind("bulk", "planned with many others", lambda _: None, ("plan",), plans=2),
    Kind("twin", "the same bytes are there from another URL: a hardlink", _has_twin, ("index", "dedupe"),
         action="hardlink"),
    Kind("resumed", "the run before broke off: its part is gone on with", _cut, ("resume_decide", "stream")),
    Kind("changed", "a part of a file that the server no longer has", _changed, ("resume_decide", "stream")),
    Kind("retried", "the run before failed at HEAD", _refused_once, ("dispatch", "head")),
    Kind("segmented", "over two connections, in pieces", stages=("stream",), policy=_SEGMENTS),
    Kind("standing", "the project has the file already", _stands, ("finalize", "dedupe"), action="skipped"),
    Kind("damaged", "other bytes stand under its name", _damaged, ("finalize",), set_aside=1),
    Kind(
        "known", "a known URL: a further name, no network", _known, ("head",),
        ends=State.SKIPPED_DUPLICATE, ops=_TO_HEAD, action="skipped",
    ),
    Kind(
        "known-damaged", "a known URL, and other bytes stand under the new name", _known_damaged, ("head",),
        ends=State.SKIPPED_DUPLICATE, ops=_TO_HEAD, action="skipped", set_aside=1,
    ),
    Kind(
        "known-copy", "a known URL, where files share nothing: a copy", _known, ("head",), linking=Linking.OFF,
        ends=State.SKIPPED_DUPLICATE, ops=_TO_HEAD, action="skipped",
    ),
    Kind("apart", "the same bytes, where files share nothing", _has_twin, ("dedupe",), linking=Linking.OFF,
         action="copy"),
    Kind("refused", "404: the end at once", page=None, ends=State.FAILED, code="http_404", ops=()),
    Kind(
        "wrong", "other bytes than asked for: the end, and no file", stages=("stream",),
        prepare=_wrong, ends=State.FAILED, code="sha256_mismatch", ops=_TO_STREAM,
    ),
    *(
        Kind(f"failing-{stage}", f"{stage} fails at first", stages=(stage,), ails=stage)
        for stage in ("resume_decide", "finalize", "index", "dedupe")
    ),
    Kind("remaining", "the file is in its place, the rest is to do", _waits_at_index, ("dispatch", "index", "dedupe")),
    Kind(
        "replayed", "done, and done again from the stored file", _to_replay,
        ("head", "stream", "finalize", "index", "dedupe"), page=None,
    ),
    Kind("orphan", "a worker vanished in the stream", _left_at("stream"), ("reconcile", "head"), heals=True),
    Kind("orphan-file", "a worker vanished at finalize", _left_at("finalize"), ("finalize",), heals=True),
    Kind("placed", "a worker vanished between name and record", _placed, ("finalize",), heals=True),
    Kind("dead", "a worker of this machine was killed", _dead, ("reconcile",), heals=True),
    Kind("lost", "the broker lost the message", _lost, ("reconcile",), heals=True),
    Kind("in-hand", "a URL that nobody knows, in one hand", stages=("head",), in_hand=True),
    Kind("twin-in-hand", "the same bytes are there from another URL, in one hand", _has_twin, ("head",),
         in_hand=True, action="hardlink"),
    Kind("remaining-in-hand", "the file is in its place, the rest is done in one hand", _waits_at_index, ("index",),
         in_hand=True),
)  # fmt: skip
