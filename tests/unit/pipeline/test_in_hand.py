"""Work in one hand (ADR 42): what a worker does by itself leaves what messages leave, and stops where they would."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dlpipe.core import flow, states
from dlpipe.core.errors import LedgerUnavailable, Permanent, Retryable
from dlpipe.core.flow import OpType
from dlpipe.core.model import Fault, Scope
from dlpipe.core.ports import Endings, Glance, Unit
from dlpipe.core.results import Result
from dlpipe.core.resume import ResumePolicy
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import wishes
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.runner import Done, Dropped, Failed
from dlpipe.pipeline.stages import STAGES
from dlpipe.pipeline.stages.stage import Stage, Work
from tests.checker import findings
from tests.crash.kinds import KINDS, Kind
from tests.fakes.source import Says
from tests.world import RETRY_S, TABLES, World, finished, sha256, some_bytes

URL, TWIN = "http://files.example/a.bin", "http://mirror.example/b.bin"
BODY, OTHER = some_bytes(150_000), some_bytes(140_000)
HALF = len(BODY) // 2
ELSEWHERE = Scope("default", "elsewhere")
NAMES = [row.name for row in flow.STAGES]
CUT = Retryable("cut", code="body_cut")

pytestmark = pytest.mark.slow

_BY_CHANCE = re.compile(r'"(?:fsync_ms|elapsed_ms|quota_free|free_bytes)": ?\d+')
_TIMES = ("_at", "_until", "_since", "fence", "_ms", "avg_write_mibps", "fault_id")


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    return world.plan(URL)


def all_at_once(world: World, job: str, run: int = 1, first: str = "head") -> Any:
    return world.run(first, job, run, NAMES[NAMES.index(first) + 1 :])


def left(world: World) -> dict[str, Any]:
    """All that a world has come to, but for times, fences, and how long anything took."""
    files = {name.partition(".damaged-")[0]: sha256(data) for name, data in world.blobs().items()}
    found: dict[str, Any] = {"files": files, "staged": world.staged(), "asked": list(world.source.asked)}
    for table in TABLES:
        rows = [dict(row._mapping) for row in world.sql(f"SELECT * FROM {table}")]
        told = [
            {
                name: _BY_CHANCE.sub("", value if isinstance(value, str) else json.dumps(value, default=repr))
                if not name.endswith(_TIMES)
                else value is not None
                for name, value in row.items()
                if name != "fence"
            }
            for row in rows
        ]
        found[table] = sorted(map(repr, told))
    job_ids = sorted(str(row.job_id) for row in world.sql("SELECT job_id FROM artifact_jobs"))
    found["order"] = {
        job_id: [
            (one.run, one.op_type, one.state) for scope in (Scope(), ELSEWHERE) for one in world.ops(job_id, scope)
        ]
        for job_id in job_ids
    }
    return found


@contextmanager
def worlds(template: Path, folder: Path) -> Iterator[tuple[World, World]]:
    """One whose worker takes a message for each stage, and one whose worker does all in one hand."""
    pair = []
    for name in ("messages", "hand"):
        place = folder / name
        place.mkdir()
        database = SqlDatabase(f"sqlite:///{shutil.copy(template, place / 'ledger.db')}")
        pair.append(World(database, place / "store"))
    try:
        yield pair[0], pair[1]
    finally:
        for world in pair:
            world.database.close()


def to_the_next_moment() -> None:
    """Of jobs that are due in the same millisecond either may be taken first, and both worlds are to take the same.

    SQLite counts milliseconds in days, and may give two that follow each other the same number.
    """
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < 2_000_000:
        pass


def heal(world: World) -> None:
    for _ in range(3):
        for row in world.sql("SELECT job_id FROM artifact_jobs"):
            to_the_next_moment()
            world.age(str(row.job_id))
            world.make_due(str(row.job_id))
            world.expire(str(row.job_id))
        reconcile(world.deps)
        world.drive()


def differences(by_messages: dict[str, Any], in_hand: dict[str, Any]) -> dict[str, Any]:
    """What each has and the other has not."""
    found = {}
    for name, here in by_messages.items():
        there = in_hand[name]
        if here == there:
            continue
        rows = isinstance(here, list) and isinstance(there, list)
        found[name] = (
            ([x for x in here if x not in there], [x for x in there if x not in here]) if rows else (here, there)
        )
    return found


# ── the same as by messages ───────────────────────────────────────────────────────────────────────

_SITUATIONS: dict[str, Callable[[World], None]] = {}


def situation(play: Callable[[World], None]) -> Callable[[World], None]:
    _SITUATIONS[play.__name__] = play
    return play


@situation
def a_fresh_file(world: World) -> None:
    world.fetch(URL)


@situation
def many_files_of_equal_bytes(world: World) -> None:
    for number in range(3):
        world.source.put(f"{TWIN}{number}", BODY)
        world.plan(f"{TWIN}{number}", project_id=("default", "elsewhere")[number % 2])
    world.drive()


@situation
def equal_bytes_in_one_project_but_a_dedupe_scope_of_its_own(world: World) -> None:
    world.policy(dedupe_scope="project")
    world.fetch(TWIN)
    world.fetch(URL)
    world.fetch(TWIN, project_id="elsewhere")


@situation
def a_copy_that_is_gone_or_damaged(world: World) -> None:
    """The first copy cannot be shared any more: from then on it is ours."""
    first = world.fetch(TWIN)
    path = Path(world.deps.store.path(world.artifacts(first)[0].storage_pointer))
    path.unlink()
    world.fetch(URL, project_id="elsewhere")


@situation
def a_known_url(world: World) -> None:
    world.fetch(URL)
    world.fetch(URL, project_id="elsewhere")
    world.fetch(URL, artifact_id="another")


@situation
def a_server_without_head(world: World) -> None:
    world.source.put(URL, BODY, head=False)
    world.fetch(URL)


@situation
def a_prefix_that_has_to_be_asked_for(world: World) -> None:
    world.stream_policy(overlap_bytes=5_000)
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    world.source.put(URL, BODY, etag=None, chunk=1_000)
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]))
    job = world.fetch(URL)
    world.make_due(job)
    world.drive()
    assert world.op(job, OpType.RESUME).result == {
        "decision": "resume", "reason": "same_prefix", "range_start": HALF,
    }  # fmt: skip


@situation
def held_bytes_that_are_gone_on_with(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]), Says(body=[BODY[HALF : HALF + 9000], CUT]))
    job = world.fetch(URL)
    for _ in range(2):
        world.make_due(job)
        world.drive()
    assert world.streamed(job)["resumed_from_bytes"] == HALF + 9000


@situation
def held_bytes_of_a_file_that_changed(world: World) -> None:
    world.source.script(URL, Says(body=[BODY[:HALF], CUT]))
    job = world.fetch(URL)
    world.source.put(URL, OTHER, etag='"v2"')
    world.make_due(job)
    world.drive()


@situation
def all_bytes_are_held(world: World) -> None:
    """The stream was through, and its record did not come."""
    job = world.plan(URL)
    world.run_to("stream", job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.database), "single", _raise)
        patch.setattr(type(world.database), "write", _nth(type(world.database).write, 3))
        world.run("stream", job)


def _raise(*_: Any) -> Any:
    raise LedgerUnavailable("the test has switched it off")


def _nth(real: Any, number: int) -> Any:
    times = 0

    def write(this: Any) -> Any:
        nonlocal times
        times += 1
        if times >= number:
            raise LedgerUnavailable("the test has switched it off")
        return real(this)

    return write


def _again(world: World, wish: str, *args: Any) -> None:
    job = world.fetch(URL)
    with world.database.write() as unit:
        getattr(unit.owned(Scope()), wish)(job, *args)


@situation
def a_refresh_of_what_is_unchanged(world: World) -> None:
    _again(world, "refresh")
    world.drive()


@situation
def a_refresh_of_what_has_changed_and_back(world: World) -> None:
    for number, body in enumerate((OTHER, BODY, OTHER)):
        _again(world, "refresh")
        world.source.put(URL, body, etag=f'"w{number}"')
        world.drive()


@situation
def a_refresh_of_equal_bytes(world: World) -> None:
    _again(world, "refresh")
    world.source.put(URL, BODY, etag='"another"')
    world.drive()


@situation
def a_repair_of_a_file_that_is_gone(world: World) -> None:
    job = world.fetch(URL)
    (artifact,) = world.artifacts(job)
    Path(world.deps.store.path(artifact.storage_pointer)).unlink()
    assert wishes.bring_back(world.deps, world.view(job), artifact, Fault.MISSING)
    world.drive()


@situation
def a_repair_for_which_the_server_has_other_bytes(world: World) -> None:
    job = world.fetch(URL)
    (artifact,) = world.artifacts(job)
    Path(world.deps.store.path(artifact.storage_pointer)).unlink()
    world.source.put(URL, OTHER, etag='"other"')
    assert wishes.bring_back(world.deps, world.view(job), artifact, Fault.MISSING)
    world.drive()


@situation
def replays(world: World) -> None:
    for stage in flow.REPLAYABLE:
        _again(world, "replay", stage)
        world.drive()


@situation
def a_replay_of_a_file_that_is_gone(world: World) -> None:
    job = world.fetch(URL)
    Path(world.deps.store.path(world.artifacts(job)[0].storage_pointer)).unlink()
    with world.database.write() as unit:
        unit.owned(Scope()).replay(job, "finalize")
    world.drive()
    with world.database.write() as unit:
        unit.owned(Scope()).retry(job)
    world.drive()


@situation
def a_retry_after_the_end(world: World) -> None:
    world.source.put(URL, OTHER)
    job = world.fetch(URL, sha256="0" * 64)
    assert world.state(job) is State.FAILED
    with world.database.write() as unit:
        unit.owned(Scope()).retry(job)
    world.drive()


@situation
def a_server_that_asks_to_wait(world: World) -> None:
    world.source.fail_head(URL, Retryable("later", code="http_5xx"))
    job = world.fetch(URL)
    del world.source._heads[URL]
    world.make_due(job)
    world.drive()


@situation
def a_mirror_has_it(world: World) -> None:
    world.source.script(URL, Permanent("gone", code="http_404"))
    world.fetch(URL, mirrors=[TWIN])


@situation
def two_jobs_of_one_url(world: World) -> None:
    world.plan(URL)
    world.plan(URL, artifact_id="second")
    world.drive()


@pytest.fixture
def pair(sqlite_template: Path, tmp_path: Path) -> Iterator[tuple[World, World]]:
    with worlds(sqlite_template, tmp_path) as found:
        yield found


@pytest.mark.parametrize("name", _SITUATIONS)
def test_in_hand_comes_to_what_messages_come_to(pair: tuple[World, World], name: str) -> None:
    found = []
    for world, in_hand in zip(pair, (False, True), strict=True):
        world.in_hand = in_hand
        for url, body in ((URL, BODY), (TWIN, BODY)):
            world.source.put(url, body)
        _SITUATIONS[name](world)
        found.append([left(world)])
        heal(world)
        found[-1].append(left(world))
        assert findings(str(world.database.url), world.root) == []
    for by_messages, in_hand_too in zip(found[0], found[1], strict=True):
        assert differences(by_messages, in_hand_too) == {}


_LATER = ("failing-resume_decide", "failing-index", "failing-dedupe")
"""What fails at first in these is their `perform`, and in hand there is none."""


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name not in _LATER and not kind.in_hand], ids=lambda kind: kind.name
)
def test_a_kind_of_the_crash_matrix_comes_in_hand_to_what_messages_come_to(
    pair: tuple[World, World], kind: Kind
) -> None:
    found = []
    for world, in_hand in zip(pair, (False, True), strict=True):
        kind.dress(world)
        kind.prepare(world)
        # Its worker is another process than those that came before.
        world.in_hand = in_hand
        replace(kind, in_hand=in_hand).work(world, lambda _: None)
        found.append([left(world)])
        heal(world)
        found[-1].append(left(world))
    for by_messages, in_hand_too in zip(found[0], found[1], strict=True):
        assert differences(by_messages, in_hand_too) == {}


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.sampled_from([URL, TWIN]), st.sampled_from(["default", "elsewhere"])),
        st.tuples(st.just("serve"), st.sampled_from([URL, TWIN]), st.sampled_from([0, 1])),
        st.tuples(st.just("cut"), st.sampled_from([URL, TWIN]), st.integers(0, HALF)),
        st.tuples(st.just("refuse"), st.sampled_from([URL, TWIN]), st.just(0)),
        st.tuples(st.sampled_from(["refresh", "pause", "resume", "cancel", "retry"]), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("replay"), st.integers(0, 3), st.sampled_from(flow.REPLAYABLE)),
        st.tuples(st.just("lose"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("drive"), st.just(0), st.just(0)),
    ),
    min_size=3,
    max_size=14,
)


def _act(world: World, action: tuple[Any, Any, Any], jobs: list[str]) -> None:
    to_the_next_moment()
    what, which, how = action
    job = jobs[which % len(jobs)] if jobs and isinstance(which, int) else None
    scope = Scope() if job is None or world.sql(
        "SELECT 1 FROM jobs WHERE job_id = :job AND project_id = 'default'", job=job
    ) else ELSEWHERE  # fmt: skip
    match what:
        case "plan":
            job_id = world.plan(which, project_id=how)
            if job_id not in jobs:
                jobs.append(job_id)
        case "serve":
            world.source.put(which, (BODY, OTHER)[how], etag=f'"v{how}"')
        case "cut":
            world.source.script(which, Says(body=[world.source.pages[which].body[:how], CUT]))
        case "refuse":
            world.source.script(which, Permanent("no", code="http_403"))
        case "replay" if job:
            with world.database.write() as unit:
                unit.owned(scope).replay(job, how)
        case "lose" if job:
            for artifact in world.artifacts(job, scope)[-1:]:
                Path(world.deps.store.path(artifact.storage_pointer)).unlink(missing_ok=True)
                if fault := wishes.fault_of(world.deps, artifact, thorough=True):
                    wishes.bring_back(world.deps, world.view(job, scope), artifact, fault)
        case "leave" if job and world.state(job) is State.PLANNED:
            with world.database.write() as unit:
                unit.jobs.claim(flow.stage("head"), job, 1, "dead", 120.0)
        case "drive":
            world.drive()
            heal(world)
        case "refresh" | "pause" | "resume" | "cancel" | "retry" as wish if job:
            with world.database.write() as unit:
                getattr(unit.owned(scope), wish)(job)
        case _:
            pass


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(actions=_ACTIONS)
def test_whatever_happens_in_hand_comes_to_what_messages_come_to(sqlite_template: Path, actions: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, worlds(sqlite_template, Path(folder)) as pair:
        found = []
        for world, in_hand in zip(pair, (False, True), strict=True):
            world.in_hand = in_hand
            jobs: list[str] = []
            for url, body in ((URL, BODY), (TWIN, BODY)):
                world.source.put(url, body)
            for action in (*actions, ("drive", 0, 0)):
                _act(world, action, jobs)
            found.append(left(world))
        assert differences(found[0], found[1]) == {}


# ── what one hand does ────────────────────────────────────────────────────────────────────────────


def test_a_job_in_one_hand_is_done_with_one_message(world: World, job: str) -> None:
    outcome = all_at_once(world, job)
    assert outcome == Done(State.DEDUPED)
    assert (outcome.stages, outcome.goes_on) == (tuple(NAMES), False)
    assert finished(world.ops(job)) == [row.op for row in flow.STAGES]
    # What was decided without touching anything has the fence of the stage in front of it.
    assert [one.fence for one in world.sql("SELECT fence FROM artifact_ops ORDER BY rowid")] == [1, 1, 2, 3, 3, 3]
    assert world.row(job).fence == 3
    assert list(world.blobs().values()) == [BODY]
    assert world.leases.held == {}


@pytest.mark.parametrize(
    ("further", "stages", "state"),
    [
        ((), ("head",), State.HEAD_DONE),
        (("resume_decide",), ("head", "resume_decide"), State.RESUME_OK),
        (("resume_decide", "stream"), ("head", "resume_decide", "stream"), State.STREAMING),
        (("resume_decide", "stream", "finalize"), ("head", "resume_decide", "stream", "finalize"), State.FINALIZED),
        # What is not the stage behind is for somebody else, whatever the message said.
        (("stream",), ("head",), State.HEAD_DONE),
        (("head",), ("head",), State.HEAD_DONE),
        (("resume_decide", "finalize"), ("head", "resume_decide"), State.RESUME_OK),
    ],
)
def test_it_goes_as_far_as_it_was_told(
    world: World, job: str, further: tuple[str, ...], stages: tuple[str, ...], state: State
) -> None:
    outcome = world.run("head", job, 1, further)
    assert isinstance(outcome, Done)
    assert (outcome.state, outcome.stages, outcome.goes_on) == (state, stages, True)
    row = world.row(job)
    assert (row.state, row.lease_owner, row.published_at is not None) == (state, None, True)
    for name in NAMES[len(stages) :]:
        assert isinstance(world.run(name, job), Done)
    assert world.state(job) is State.DEDUPED


def test_the_message_of_a_stage_that_was_done_in_hand_is_replayed(world: World, job: str) -> None:
    all_at_once(world, job)
    before = world.everything()
    for name in NAMES:
        assert world.run(name, job, 1, NAMES[NAMES.index(name) + 1 :]) == Done(State.DEDUPED, replayed=True)
    assert world.everything() == before


def test_a_known_url_ends_the_hand(world: World, job: str) -> None:
    all_at_once(world, job)
    again = world.plan(URL, artifact_id="again")
    outcome = all_at_once(world, again)
    assert isinstance(outcome, Done)
    assert (outcome.state, outcome.stages, outcome.goes_on) == (State.SKIPPED_DUPLICATE, ("head",), False)


def test_equal_bytes_are_not_joined_but_claimed_and_shared(world: World, job: str) -> None:
    all_at_once(world, job)
    world.source.put(TWIN, BODY)
    twin = world.plan(TWIN, project_id="elsewhere")
    outcome = all_at_once(world, twin)
    assert outcome == Done(State.DEDUPED)
    assert outcome.stages == tuple(NAMES)
    found = world.op(twin, OpType.DEDUPE, ELSEWHERE).result
    assert dict(found or {})["action"] == "hardlink"
    assert world.row(twin).fence == 4
    fences = world.sql("SELECT fence FROM artifact_ops WHERE job_id = :job ORDER BY rowid", job=twin)
    assert [one.fence for one in fences] == [1, 1, 2, 3, 3, 4]


def test_an_op_that_an_earlier_run_has_finished_is_not_joined_with_those_behind_it(world: World, job: str) -> None:
    """It keeps the result that it had then, and they go by that one: whoever claims them reads it."""
    world.run_to("index", job)
    world.sql("UPDATE artifact_jobs SET state = 'FAILED', due_at = 1, published_at = NULL")
    found = all_at_once(world, job, 2)
    assert (found, found.stages) == (Done(State.STREAMING), tuple(NAMES[:3]))  # nor claimed with the end of the stream
    found = all_at_once(world, job, 2, "finalize")
    assert (found, found.stages, found.goes_on) == (Done(State.FINALIZED), ("finalize",), True)
    assert all_at_once(world, job, 2, "index") == Done(State.DEDUPED)
    assert findings(str(world.database.url), world.root) == []


def test_a_twin_that_registers_between_is_seen(world: World, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had these bytes when they were put in place; when they are registered, somebody has."""
    world.source.put(TWIN, BODY)
    twin = world.plan(TWIN, project_id="elsewhere")
    world.run_to("finalize", twin)
    finalize = STAGES["finalize"].perform

    def meanwhile(this: Stage, work: Work) -> Result:
        result = finalize(this, work)
        if work.job.job_id == job:
            monkeypatch.setattr(STAGES["finalize"], "perform", finalize)
            for name in NAMES[3:]:
                assert isinstance(world.run(name, twin), Done)
        return result

    monkeypatch.setattr(STAGES["finalize"], "perform", meanwhile)
    outcome = all_at_once(world, job)
    assert outcome == Done(State.DEDUPED)
    assert world.row(job).fence == 4
    assert dict(world.op(job, OpType.DEDUPE).result or {})["action"] == "hardlink"


def test_a_prefix_that_has_to_be_asked_for_is_claimed_by_itself(world: World) -> None:
    a_fresh = world.source.put(URL, BODY, etag=None, chunk=1_000)
    world.policy(resume=ResumePolicy(prefix_bytes=4_096))
    world.stream_policy(overlap_bytes=5_000)
    world.source.script(a_fresh, Says(body=[BODY[:HALF], CUT]))
    job = world.fetch(a_fresh)
    world.make_due(job)
    before = world.row(job).fence
    assert all_at_once(world, job, 2) == Done(State.DEDUPED)
    assert world.row(job).fence == before + 4
    assert list(world.blobs().values()) == [BODY]


# ── where it stops ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def meanwhile(stage: str, happens: Callable[[], None]) -> Iterator[None]:
    """Once, when that stage is performed, before its end is written."""
    kind, perform = STAGES[stage], STAGES[stage].perform

    def performed(this: Stage, work: Work) -> Result:
        result = perform(this, work)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "perform", perform)
            happens()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "perform", performed)
        yield


CLAIMED = ("head", "stream", "finalize")
"""Those that are claimed in a first run without a twin."""
BEHIND = {"head": State.LEASED, "stream": State.STREAMING, "finalize": State.STREAMING}


@pytest.mark.parametrize("stage", CLAIMED)
def test_a_lease_that_is_lost_in_the_middle_records_nothing_more(world: World, job: str, stage: str) -> None:
    with meanwhile(stage, lambda: world.leases.lose(job)):
        assert all_at_once(world, job) == Dropped("lease_lost")
    row = world.row(job)
    assert (row.state, row.lease_owner, row.attempts, row.due_at is not None) == (BEHIND[stage], None, 0, True)
    world.drive()
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("stage", CLAIMED)
def test_a_process_that_is_to_end_records_what_is_done_and_begins_nothing(world: World, job: str, stage: str) -> None:
    with meanwhile(stage, world.leases.give_up):
        outcome = all_at_once(world, job)
    assert isinstance(outcome, Done)
    assert outcome.stages[-1] == stage
    assert outcome.goes_on
    row = world.row(job)
    assert (row.lease_owner, row.due_at, row.published_at is not None) == (None, None, True)
    for name in NAMES[NAMES.index(stage) + 1 :]:
        assert isinstance(world.run(name, job), Done)
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("stage", CLAIMED)
@pytest.mark.parametrize("wish", ["pause", "cancel"])
def test_a_wish_in_the_middle_ends_it(world: World, job: str, stage: str, wish: str) -> None:
    def happens() -> None:
        with world.database.write() as unit:
            getattr(unit.owned(Scope()), wish)(job)

    with meanwhile(stage, happens):
        assert all_at_once(world, job) == Dropped("lease_lost")
    row = world.row(job)
    assert (row.lease_owner, row.state == State.CANCELED) == (None, wish == "cancel")
    before = world.everything()
    for name in NAMES:
        assert isinstance(world.run(name, job, 1, NAMES), Dropped | Done)
    assert world.everything() == before
    if wish == "pause":
        with world.database.write() as unit:
            unit.owned(Scope()).resume(job)
        world.drive()
        assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("stage", CLAIMED)
def test_a_pause_that_leaves_the_claim_as_it_is_lets_it_end_and_not_go_on(world: World, job: str, stage: str) -> None:
    """As a later release may do it: the guard of a claim stands in the ending, too."""
    with meanwhile(stage, lambda: (world.sql("UPDATE artifact_jobs SET paused_at = 1"), None)[1]):
        outcome = all_at_once(world, job)
    assert isinstance(outcome, Done)
    row = world.row(job)
    assert (row.lease_owner, row.state) == (None, outcome.state)
    assert set(outcome.stages) == {one.lower() for one in _stages_of(finished(world.ops(job)))}


def _stages_of(ops: list[str]) -> list[str]:
    return [row.name for row in flow.STAGES if row.op in ops]


def test_a_holder_that_was_overtaken_in_the_middle_takes_nothing_from_the_other_one(world: World, job: str) -> None:
    def happens() -> None:
        del world.leases.held[job]  # by FLUSHALL, say: its holder knows nothing of it
        world.expire(job)
        reconcile(world.deps)
        for name in NAMES:
            assert isinstance(world.run(name, job, 2), Done)
        seen.append(world.everything())

    seen: list[Any] = []
    with meanwhile("stream", happens):
        assert all_at_once(world, job) == Dropped("lease_lost")
    assert world.everything() == seen[0]


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stage", "op", "state"),
    [("stream", OpType.STREAM, State.FAILED), ("finalize", OpType.FINALIZE, State.FAILED)],
)
@pytest.mark.parametrize("error", [Retryable("for a moment", code="store_io_error"), KeyError("a bug")])
def test_a_failure_is_charged_to_the_stage_that_failed(
    world: World, job: str, stage: str, op: OpType, state: State, error: Exception
) -> None:
    def fail() -> None:
        raise error

    code = "store_io_error" if isinstance(error, Retryable) else "internal_error"
    with meanwhile(stage, fail):
        assert all_at_once(world, job) == Failed(code, RETRY_S)
    row = world.row(job)
    assert (row.state, row.attempts, row.lease_owner) == (state, 1, None)
    failed = [(one.op_type, one.result_code) for one in world.ops(job) if one.state == "failed"]
    assert failed == [(op, code)]
    assert finished(world.ops(job)) == [one.op for one in flow.STAGES[: NAMES.index(stage)]]
    world.make_due(job)
    world.drive()
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("stage", ["resume_decide", "index"])
@pytest.mark.parametrize("error", [Retryable("for a moment", code="store_io_error"), Permanent("no", code="http_404")])
def test_a_failure_of_what_would_have_been_joined_does_not_fail_the_stage_in_front_of_it(
    world: World, job: str, monkeypatch: pytest.MonkeyPatch, stage: str, error: Exception
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(STAGES[stage], "ahead", fail)
    monkeypatch.setattr(STAGES[stage], "perform", fail)
    outcome = all_at_once(world, job)
    assert isinstance(outcome, Failed)
    front = NAMES[: NAMES.index(stage)]
    assert finished(world.ops(job)) == [flow.stage(name).op for name in front]
    (failed,) = [one.op_type for one in world.ops(job) if one.state == "failed"]
    assert failed == flow.stage(stage).op


@pytest.mark.parametrize("stage", ["resume_decide", "index"])
def test_a_surprise_in_what_would_have_been_joined_is_its_own(
    world: World, job: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """What the stage in front of it has brought is on record, and not done again for a bug behind it."""

    def fail(*_: Any) -> Any:
        raise KeyError(stage)

    monkeypatch.setattr(STAGES[stage], "ahead", fail)
    monkeypatch.setattr(STAGES[stage], "perform", fail)
    assert all_at_once(world, job) == Failed("internal_error", RETRY_S)
    front = NAMES[: NAMES.index(stage)]
    assert finished(world.ops(job)) == [flow.stage(name).op for name in front]


def test_a_part_that_another_job_has_does_not_fail_the_head(world: World, job: str) -> None:
    second = world.plan(URL, artifact_id="second")
    head = STAGES["head"].perform
    outcomes: list[Any] = []

    def take_the_part() -> None:
        """Between our HEAD and our look at the staging folder, the other job has begun with its stream."""
        held.append(world.deps.staging.claim("default", URL, second, 1))
        held[0].__enter__()

    held: list[Any] = []
    with meanwhile("head", take_the_part):
        outcomes.append(all_at_once(world, job))
    held[0].__exit__(None, None, None)
    assert STAGES["head"].perform is head
    assert outcomes == [Failed("part_busy", 30.0)]
    assert finished(world.ops(job)) == [OpType.HEAD]
    assert world.row(job).attempts == 0
    (busy,) = [one.op_type for one in world.ops(job) if one.state == "failed"]
    assert busy == OpType.RESUME


# ── writes of which nobody hears ──────────────────────────────────────────────────────────────────


class Mute:
    """A database that makes the n-th write and does not answer it; or does not make it, either."""

    def __init__(self, world: World, nth: int, *, made: bool) -> None:
        self._inner, self._left, self._made = world.database, nth, made

    @contextmanager
    def write(self) -> Iterator[Unit]:
        self._left -= 1
        with self._inner.write() as unit:
            yield unit
            if self._left == 0 and not self._made:
                unit.rollback()
        if self._left <= 0:
            raise LedgerUnavailable("nobody answers any more")

    @contextmanager
    def single(self) -> Iterator[Endings]:
        with self.write() as unit:
            yield unit.endings

    @contextmanager
    def read(self) -> Iterator[Unit]:
        with self._inner.read() as unit:
            yield unit

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        with self.read() as unit:
            yield unit


# The claim is the first of its writes, and the look at the store the second; these are the ends.
@pytest.mark.parametrize("nth", [3, 4, 5])
@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_claim_of_which_nobody_heard_is_handed_back_under_whichever_fence_it_has(
    world: World, job: str, nth: int, made: bool
) -> None:
    deps, world.deps = world.deps, replace(world.deps, database=Mute(world, nth, made=made))
    assert all_at_once(world, job) == Dropped("ledger_unavailable")
    ended = made and nth == 5
    fence = world.row(job).fence
    assert [one.fence - fence for one in deps.unreturned] == ([-1, 0] if made and not ended else [0, 1])
    assert (world.row(job).lease_owner is None) == ended
    world.deps = deps
    world.run("head", world.plan(URL, artifact_id="next"))
    row = world.row(job)
    assert (row.lease_owner, row.attempts, row.fence, deps.unreturned) == (None, 0, fence, [])
    assert (row.due_at is None) == ended
    world.drive()
    heal(world)
    assert world.state(job) is State.DEDUPED
    assert findings(str(world.database.url), world.root) == []


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_claim_of_which_nobody_heard_is_left_to_who_has_it_by_now(world: World, job: str, made: bool) -> None:
    """The other one's fence may be the very one that we guess."""
    deps, world.deps = world.deps, replace(world.deps, database=Mute(world, 3, made=made))
    assert all_at_once(world, job) == Dropped("ledger_unavailable")
    world.deps = deps
    world.expire(job)
    stage = "stream" if made else "head"
    with world.database.write() as unit:
        unit.jobs.claim(flow.stage(stage), job, 1, "another", 120.0)
    before = [world.row(job)]
    world.run("head", world.plan(URL, artifact_id="next"))
    assert before == [world.row(job)]
    assert (world.row(job).lease_owner, deps.unreturned) == ("another", [])


# ── states ────────────────────────────────────────────────────────────────────────────────────────


def test_what_every_result_enters_the_stage_behind_it_can_claim_or_it_is_an_end() -> None:
    """The hand goes by the same table as messages do."""
    for row in flow.STAGES:
        behind = flow.after(row)
        targets = {step.target for step in states.TABLE if step.stage == row.name and step.moment == "finish"}
        for target in targets - states.FINISHED:
            assert behind is not None
            assert target in states.claimable(behind.name)


def test_a_step_that_is_no_stage_of_ours_ends_the_hand_and_fails_nothing(world: World, job: str) -> None:
    assert world.run("head", job, 1, ["resume_decide", "scan", "stream"]) == Done(State.RESUME_OK)
    assert [op.op_type for op in world.ops(job)] == ["HEAD", "RESUME"]
