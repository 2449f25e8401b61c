"""Whoever was overtaken changes nothing: not the job, not the ledger, not the registry (LEASE-2, LEASE-3, LEDGER-3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlpipe.core import flow
from dlpipe.core.errors import IllegalTransition, LeaseLost
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob, ArtifactRecord
from dlpipe.core.ports import Held, KnownBlob, StartedOp, Unit
from dlpipe.core.results import IndexResult
from dlpipe.core.states import State, Status
from tests.ledgers import FOR_GOOD, OWN, SOON, UNKNOWN, Bench, everything

S = State
SHA = "a" * 64
POINTER = f"local:default/default/aa/{SHA}"
UUID = "11111111-1111-5111-8111-111111111111"
INDEX = flow.stage("index")
RESULT = IndexResult(SHA, POINTER, UUID)


def holder(bench: Bench) -> tuple[ArtifactJob, StartedOp]:
    """A worker in the middle of the index stage."""
    job = bench.hold("index", bench.in_state(S.FINALIZED), token="mine")
    with bench.database.write() as unit:
        return job, unit.ledger.start(f"op{job.job_id}", OpType.INDEX, job)


def taken_over(bench: Bench, job: ArtifactJob) -> None:
    bench.expire(job.job_id)
    bench.hold("index", job.job_id, token="next")


def taken_over_with_the_op(bench: Bench, job: ArtifactJob) -> None:
    bench.expire(job.job_id)
    later = bench.hold("index", job.job_id, token="next")
    with bench.database.write() as unit:
        unit.ledger.start(f"op{job.job_id}", OpType.INDEX, later)


def finished_by_another(bench: Bench, job: ArtifactJob) -> None:
    bench.expire(job.job_id)
    later = bench.hold("index", job.job_id, token="next")
    with bench.database.write() as unit:
        op = unit.ledger.start(f"op{job.job_id}", OpType.INDEX, later)
        unit.ledger.finish(op, replace(RESULT, artifact_uuid=UUID[::-1]), "ok")
        unit.jobs.advance(later, INDEX, S.INDEXED)


def orphaned(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        assert unit.backlog.orphan(Held(job, "mine"), None)


def orphaned_for_good(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        assert unit.backlog.orphan(Held(job, "mine"), FOR_GOOD)


def canceled(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        assert unit.owned(OWN).cancel(job.job_id) is Status.CANCELED


def canceled_while_it_waited(bench: Bench, job: ArtifactJob) -> None:
    bench.fail(job, SOON)
    canceled(bench, job)


def handed_back(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(job)


def given_up(bench: Bench, job: ArtifactJob) -> None:
    bench.fail(job, FOR_GOOD)


def given_up_for_now(bench: Bench, job: ArtifactJob) -> None:
    bench.fail(job, replace(SOON, keeps_state=True))


def advanced(bench: Bench, job: ArtifactJob) -> None:
    """The same claim again, after its own success: a doubled write."""
    bench.advance(job, "index", S.INDEXED)


LOST = [
    taken_over, taken_over_with_the_op, finished_by_another, orphaned, orphaned_for_good, canceled,
    canceled_while_it_waited, handed_back, given_up, given_up_for_now,
]  # fmt: skip


def record(unit: Unit, job: ArtifactJob, op: StartedOp) -> None:
    """All that the index stage writes, in the order of the runner."""
    registry = unit.registry
    registry.add_artifact(ArtifactRecord(UUID, OWN, "file", "local", POINTER, None, 7, SHA, 1, job.job_id))
    registry.add_copy("default", SHA, POINTER, 7, job.job_id)
    registry.see_url("default", job.canonical_url, KnownBlob(SHA, POINTER, 7))
    registry.note(UUID, job.job_id, {"run": job.run, "sha256": SHA, "pointer": POINTER, "byte_size": 7})
    unit.ledger.finish(op, RESULT, "ok")
    unit.jobs.advance(job, INDEX, S.INDEXED)


def fail(unit: Unit, job: ArtifactJob, op: StartedOp) -> None:
    unit.ledger.fail(op, SOON.code)
    unit.jobs.fail(job, SOON)


def fail_where_it_is(unit: Unit, job: ArtifactJob, op: StartedOp) -> None:
    unit.jobs.fail(job, replace(SOON, keeps_state=True))


def fail_for_good(unit: Unit, job: ArtifactJob, op: StartedOp) -> None:
    unit.jobs.fail(job, FOR_GOOD)


def advance(unit: Unit, job: ArtifactJob, op: StartedOp) -> None:
    unit.jobs.advance(job, INDEX, S.INDEXED)


Late = Callable[[Unit, ArtifactJob, StartedOp], None]


@pytest.mark.parametrize("lose", LOST)
@pytest.mark.parametrize("late", [record, fail, fail_where_it_is, fail_for_good, advance])
def test_a_late_write_raises_and_changes_nothing_at_all(
    bench: Bench, lose: Callable[[Bench, ArtifactJob], None], late: Late
) -> None:
    job, op = holder(bench)
    lose(bench, job)
    before = everything(bench.database)
    # Under its own fence, a job that has failed for good is where no success comes from.
    ended = lose is given_up and late in (record, advance)
    with pytest.raises(IllegalTransition if ended else LeaseLost), bench.database.write() as unit:
        late(unit, job, op)
    assert everything(bench.database) == before


@pytest.mark.parametrize("lose", [*LOST, advanced])
def test_what_was_lost_cannot_be_handed_back_renewed_or_orphaned(
    bench: Bench, lose: Callable[[Bench, ArtifactJob], None]
) -> None:
    job, _ = holder(bench)
    lose(bench, job)
    before = everything(bench.database)
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(job) is False
        assert unit.backlog.orphan(Held(job, "mine"), None) is False
        assert unit.backlog.orphan(Held(job, "mine"), FOR_GOOD) is False
        assert unit.jobs.renew([(job.job_id, job.fence)], 60.0) == {job.job_id}
    assert everything(bench.database) == before


def paused(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        view = unit.owned(OWN).pause(job.job_id)
        assert view is not None
        assert view.paused_at is not None


@pytest.mark.parametrize("lose", [orphaned, orphaned_for_good, canceled, paused])
def test_what_was_begun_under_a_holder_who_was_set_aside_is_seen_to_be_abandoned(
    bench: Bench, lose: Callable[[Bench, ArtifactJob], None]
) -> None:
    """Nobody may ever claim the job again, and then no later fence would say so (LEDGER-6)."""
    job, op = holder(bench)
    lose(bench, job)
    with bench.database.write() as unit:
        assert unit.ledger.mark_abandoned(9) == 1
        (view,) = [one for one in unit.owned(OWN).ops(job.job_id) if one.op_key == op.op_key]
    assert (view.state, view.result_code) == ("abandoned", "fence_overtaken")


def test_what_was_recorded_cannot_be_taken_back_under_the_same_fence(bench: Bench) -> None:
    job, op = holder(bench)
    with bench.database.write() as unit:
        record(unit, job, op)
    before = everything(bench.database)
    for late in (fail, fail_for_good, fail_where_it_is):
        with pytest.raises(LeaseLost), bench.database.write() as unit:
            late(unit, job, op)
    assert everything(bench.database) == before


def test_a_later_holder_cannot_be_robbed_of_its_op(bench: Bench) -> None:
    job, _ = holder(bench)
    taken_over_with_the_op(bench, job)
    before = everything(bench.database)
    with pytest.raises(LeaseLost), bench.database.write() as unit:
        unit.ledger.start(f"op{job.job_id}", OpType.INDEX, job)
    assert everything(bench.database) == before


def test_the_holder_itself_can_do_all_this(bench: Bench) -> None:
    """So that the refusals above are about the fence."""
    job, op = holder(bench)
    with bench.database.write() as unit:
        assert unit.jobs.renew([(job.job_id, job.fence)], 60.0) == set()
        record(unit, job, op)
    assert bench.row(job.job_id)["state"] == S.INDEXED
    for late in (fail, fail_where_it_is, fail_for_good, advance):
        job, op = holder(bench)
        with bench.database.write() as unit:
            late(unit, job, op)
    job, _ = holder(bench)
    handed_back(bench, job)


def test_a_job_that_is_gone_is_lost(bench: Bench) -> None:
    job, op = holder(bench)
    gone = replace(job, job_id=UNKNOWN)
    for late in (fail, fail_where_it_is, fail_for_good, advance):
        with pytest.raises(LeaseLost), bench.database.write() as unit:
            late(unit, gone, op)
