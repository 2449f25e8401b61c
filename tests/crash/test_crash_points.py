"""A worker is killed at every named point; whoever comes next ends the job as if nothing had been.

Effects are performed again or found done, recorded once, and leave one file, one record, and no litter.
What other faults do there: see the crash matrix (matrix.py).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

import dlpipe
from dlpipe.core import flow, keys
from dlpipe.core.flow import OpType
from dlpipe.core.model import OpView, Scope
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.states import State, Status
from dlpipe.lease.lock import PREFIX
from dlpipe.pipeline import runner
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.stages.fetch import WHOLE_OVERLAP_BYTES
from tests.crash.child import Site, die_in_dispatch, die_in_stage
from tests.crash.conftest import Kill
from tests.servers import Valkey
from tests.world import World, finished, job_of, sha256, some_bytes

pytestmark = pytest.mark.crash

MIB = 1 << 20
URL = "http://files.example/big.bin"
TWIN_URL = "http://mirror.example/same.bin"
BODY = some_bytes(2 * MIB + MIB // 2)
TWIN = Scope("default", "elsewhere")
DISPATCH = "dispatch.marked"


@dataclass(frozen=True)
class Cell:
    """What follows when the worker dies there.

    gets_new_run, gets_same_run: requests for bytes that the next holder makes.
    resumes: from where a new run goes on, and the same run too when it died in the stream.
    found: whether the file was in its place already when the same run is carried on.
    """

    gets_new_run: int
    gets_same_run: int
    resumes: int = 0
    found: bool = False


ALL_BYTES_HELD = Cell(1, 1, resumes=len(BODY))  # and no record of them: their end is compared
IN_PLACE = Cell(0, 0, resumes=len(BODY), found=True)  # the part is there beside the file
PART_GONE = Cell(1, 0, found=True)
CELLS = {
    **{f"head.{at}": Cell(1, 1) for at in ("claimed", "performed", "recording", "recorded")},
    **{f"resume_decide.{at}": Cell(1, 1) for at in ("claimed", "performed", "recording", "recorded")},
    "stream.claimed": Cell(1, 1),
    "stream.chunk": Cell(1, 1, resumes=MIB),
    "stream.finished": ALL_BYTES_HELD,
    "stream.performed": ALL_BYTES_HELD,
    "stream.recording": ALL_BYTES_HELD,
    "stream.recorded": Cell(0, 0),
    "finalize.claimed": Cell(0, 0, resumes=len(BODY)),
    "finalize.before_link": Cell(0, 0, resumes=len(BODY)),
    "finalize.after_link": IN_PLACE,
    "finalize.after_fsync": IN_PLACE,
    "finalize.after_unlink": PART_GONE,
    "finalize.performed": PART_GONE,
    "finalize.recording": PART_GONE,
    "finalize.recorded": Cell(0, 0),
    **{f"index.{at}": Cell(0, 0) for at in ("claimed", "performed", "recording", "recorded")},
    **{f"dedupe.{at}": Cell(0, 0) for at in ("claimed", "performed", "recording", "recorded")},
    "dedupe.after_link": Cell(0, 0),
    "dedupe.after_rename": Cell(0, 0),
}


def points_in_the_source() -> Iterator[str]:
    """Every name that the code passes to crash_point, with each stage's for the runner's."""
    for file in sorted(Path(dlpipe.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "crash_point"):
                continue
            (argument,) = node.args
            text = ast.unparse(argument)
            if isinstance(argument, ast.Constant):
                yield str(argument.value)
            else:
                of_stage = re.fullmatch(r"f'\{[\w.\[\]]*name\}\.(\w+)'", text)
                assert of_stage is not None, f"unknown kind of crash point: {text}"
                yield from (f"{row.name}.{of_stage[1]}" for row in flow.STAGES)


def test_each_cell_is_of_a_point_in_the_source() -> None:
    found = list(points_in_the_source())
    assert len(found) == len(set(found)) >= 80
    assert {*CELLS, DISPATCH} <= set(found)


@pytest.fixture
def site(world: World, valkey: Valkey) -> Site:
    for url in (URL, TWIN_URL):
        world.source.put(url, BODY, chunk=MIB // 2)
    url = world.database.url.render_as_string(hide_password=False)
    return Site(url, world.root, valkey.url, dict(world.source.pages))


@pytest.mark.parametrize("point", CELLS)
@pytest.mark.parametrize("carried_on_by", ["a new run", "the same message"])
def test_whoever_is_killed_the_job_ends_once(
    point: str, carried_on_by: str, world: World, site: Site, valkey: Valkey, kill: Kill
) -> None:
    stage = point.partition(".")[0]
    if stage == "dedupe":
        world.fetch(TWIN_URL, project_id=TWIN.project_id)
    job_id = world.plan(URL)
    world.run_to(stage, job_id)
    world.source.asked.clear()

    kill(die_in_stage, site, stage, job_id, 1, point, 8 if point == "stream.chunk" else 1)
    if carried_on_by == "a new run":
        heal(world, job_id, valkey)
    else:
        deliver_again(world, job_id, stage, valkey)

    assert_done_once(world, job_id, litter=point == "dedupe.after_link")
    cell = CELLS[point]
    new_run = carried_on_by == "a new run"
    gets = world.source.gets(URL)
    assert len(gets) == (cell.gets_new_run if new_run else cell.gets_same_run)
    streamed = result(world.op(job_id, OpType.STREAM))
    if cell.resumes and (new_run or stage == "stream"):
        resumed = int(str(streamed["resumed_from_bytes"]))
        # In the middle of a body the hash, and what it vouches for, is up to a MiB behind what was written.
        assert cell.resumes <= resumed < cell.resumes + (MIB if point == "stream.chunk" else 1)
        assert streamed["bytes_written"] == len(BODY) - resumed
        start = resumed if resumed < len(BODY) else resumed - WHOLE_OVERLAP_BYTES
        assert [get.start for get in gets] == [start] * len(gets)
        (noted,) = world.sql("SELECT resume_decision FROM manifest WHERE job_id = :job_id", job_id=job_id)
        assert noted.resume_decision == ("complete" if resumed == len(BODY) else "resume")
    placed = result(world.op(job_id, OpType.FINALIZE))
    assert placed["already_there"] == cell.found
    if stage == "dedupe":
        assert result(world.op(job_id, OpType.DEDUPE))["action"] == "hardlink"
        (mine,), (other,) = world.artifacts(job_id), world.sql("SELECT * FROM hash_index")
        store = world.deps.store
        assert os.path.samefile(store.path(mine.storage_pointer), store.path(other.pointer))


def test_jobs_that_were_marked_but_never_sent_are_sent_later(world: World, site: Site, kill: Kill) -> None:
    job_id = world.plan(URL)
    kill(die_in_dispatch, site, DISPATCH)
    assert world.row(job_id).published_at is not None
    world.drive()
    assert world.state(job_id) is State.PLANNED  # nobody knows of it: it counts as sent
    world.age(job_id)
    assert reconcile(world.deps).lost_messages == 1
    world.drive()
    assert_done_once(world, job_id)


def test_a_job_whose_workers_die_again_and_again_ends_as_failed(world: World, site: Site, kill: Kill) -> None:
    job_id = world.plan(URL)
    for run in range(1, 6):
        kill(die_in_stage, site, "head", job_id, run, "head.claimed", 1)
        reconcile(world.deps)
    world.drive()
    view = world.view(job_id)
    assert (view.status, view.error_code, view.attempts) == (Status.FAILED, "attempts_exhausted", 5)
    assert reconcile(world.deps).orphans_requeued == 0


def test_finalize_twice_with_the_same_key_answers_the_stored_result(world: World, site: Site) -> None:
    job_id = world.plan(URL)
    world.run_to("finalize", job_id)
    world.run("finalize", job_id)
    key = keys.op_key(OpType.FINALIZE, job_id, sha256=sha256(BODY))
    before = stored(world, key)
    again = world.run("finalize", job_id)
    assert isinstance(again, runner.Done)
    assert again.replayed
    assert stored(world, key) == before
    # The same content in a later run has the same key: the first result stands.
    failed = FailureWrite("for_the_test", "for the test", "debug", None)
    world.leave_claimed("index", job_id)
    job = job_of(world, job_id)
    with world.database.write() as unit:
        unit.jobs.fail(job, failed)
    with world.database.write() as unit:
        assert unit.owned(Scope()).retry(job_id) is Status.PENDING
    world.drive()
    assert_done_once(world, job_id)
    assert stored(world, key) == before
    assert world.row(job_id).run == 2


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def heal(world: World, job_id: str, valkey: Valkey) -> None:
    """As the beat does, until the job is at its end."""
    recorded = world.row(job_id).lease_owner is None
    if recorded:  # then only the message is missing, and the lock in Redis has to run out
        run_out(job_id, valkey)
        world.age(job_id)
    missing = recorded and world.state(job_id) is not State.DEDUPED
    report = reconcile(world.deps)
    assert world.row(job_id).lease_owner is None, "the dead worker's lease is still in the row"
    assert (report.dead_owners, report.lost_messages) == (not recorded, missing)
    world.drive()
    reconcile(world.deps)


def deliver_again(world: World, job_id: str, stage: str, valkey: Valkey) -> None:
    """The broker hands the message out again, after the dead worker's lease has run out."""
    run_out(job_id, valkey)
    world.expire(job_id)
    names = [row.name for row in flow.STAGES]
    for name in names[names.index(stage) :]:
        outcome = world.run(name, job_id)
        assert isinstance(outcome, runner.Done), f"{name}: {outcome}"


def run_out(job_id: str, valkey: Valkey) -> None:
    with valkey.client() as client:
        assert client.delete(PREFIX + job_id) == 1, "the dead worker held no lease"


def stored(world: World, key: str) -> object:
    with world.database.read() as unit:
        return unit.ledger.get_effect_result(key)


def result(op: OpView) -> dict[str, object]:
    assert op.result is not None
    return dict(op.result)


def assert_done_once(world: World, job_id: str, *, litter: bool = False) -> None:
    assert world.state(job_id) is State.DEDUPED
    assert world.view(job_id).status is Status.COMPLETED
    row = world.row(job_id)
    assert (row.lease_owner, row.due_at, row.published_at) == (None, None, None)
    ops = world.ops(job_id)
    for op_type in (OpType.FINALIZE, OpType.INDEX, OpType.DEDUPE):
        assert [op.state for op in ops if op.op_type == op_type] == ["finished"]
    for op_type in (OpType.HEAD, OpType.RESUME, OpType.STREAM):
        assert len([op for op in ops if op.op_type == op_type]) <= row.run
        assert op_type in finished(ops)
    (artifact,) = world.artifacts(job_id)
    assert (artifact.sha256, artifact.byte_size) == (sha256(BODY), len(BODY))
    assert len(world.sql("SELECT 1 FROM artifacts WHERE created_by_job_id = :job", job=job_id)) == 1
    assert len(world.sql("SELECT 1 FROM manifest WHERE job_id = :job", job=job_id)) == 1
    assert Path(world.deps.store.path(artifact.storage_pointer)).read_bytes() == BODY
    assert set(world.blobs().values()) == {BODY}
    assert [name for name in world.staged() if not (litter and name.endswith(".tmp"))] == []
    with world.database.engine.connect() as connection:
        open_ops = sa.text("SELECT count(*) FROM artifact_ops WHERE state = 'started'")
        assert connection.scalar(open_ops) == 0
