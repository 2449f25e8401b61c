"""The record of effects, on both engines: started by a holder, finished once, replayed as it was (LEDGER-1 … 6)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.core.errors import LeaseLost, ResultUnreadable
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import StartedOp
from dlpipe.core.results import (
    DedupeAction,
    DedupeResult,
    FinalizeResult,
    HeadResult,
    IndexResult,
    Result,
    ResumeResult,
    StreamResult,
)
from dlpipe.core.states import State
from dlpipe.db.clock import after
from dlpipe.db.schema import artifact_ops
from tests.ledgers import FOR_GOOD, OWN, UNKNOWN, Bench, everything, looking

S = State
HEAD = HeadResult(200, "f" * 64, etag='"ü"', content_length=7)
OTHER = HeadResult(404, "0" * 64)
RESULTS: dict[OpType, Result] = {
    OpType.HEAD: HEAD,
    OpType.RESUME: ResumeResult("fresh", "new"),
    OpType.STREAM: StreamResult("0" * 64, 7, 0, 7, 3, 1),
    OpType.FINALIZE: FinalizeResult("0" * 64, 7, "local:x", already_there=False),
    OpType.INDEX: IndexResult("0" * 64, "local:x", "u"),
    OpType.DEDUPE: DedupeResult(DedupeAction.COPY, 0),
}


def start(bench: Bench, job: ArtifactJob, key: str = "k", op: OpType = OpType.HEAD) -> StartedOp:
    with bench.database.write() as unit:
        return unit.ledger.start(key, op, job)


def finish(bench: Bench, op: StartedOp, result: Result = HEAD, code: str = "ok") -> None:
    with bench.database.write() as unit:
        unit.ledger.finish(op, result, code)


def stored(bench: Bench, key: str = "k") -> Result | None:
    with bench.database.read() as unit:
        return unit.ledger.get_effect_result(key)


def row(bench: Bench, key: str = "k") -> sa.RowMapping:
    with looking(bench.database) as connection:
        return connection.execute(sa.select(artifact_ops).where(artifact_ops.c.op_key == key)).mappings().one()


def held(bench: Bench) -> ArtifactJob:
    return bench.hold("head", bench.job())


def next_holder(bench: Bench, job: ArtifactJob, *, new_run: bool = False) -> ArtifactJob:
    bench.expire(job.job_id)
    if new_run:
        with bench.database.write() as unit:
            (gone,) = unit.backlog.expired(9)
            assert unit.backlog.orphan(gone, None)
    return bench.hold("head", job.job_id, job.run + new_run)


def test_a_started_op_is_no_result(bench: Bench) -> None:
    job = held(bench)
    op = start(bench, job)
    assert op == StartedOp("k", OpType.HEAD, job.run, job.fence, seen=False)
    assert stored(bench) is None
    with bench.database.read() as unit:
        assert unit.ledger.results(job.job_id, 1).latest(OpType.HEAD) is None
    found = row(bench)
    assert (found["state"], found["fence"], found["run"], found["result_json"]) == ("started", 1, 1, None)
    assert (found["started_at"] is not None, found["finished_at"]) == (True, None)


def test_an_unknown_op_has_no_result(bench: Bench) -> None:
    assert stored(bench, "nobody") is None


@pytest.mark.parametrize("op_type", list(OpType))
def test_a_result_is_read_as_it_was_stored(bench: Bench, op_type: OpType) -> None:
    job = held(bench)
    finish(bench, start(bench, job, op=op_type), RESULTS[op_type])
    assert stored(bench) == RESULTS[op_type]
    with bench.database.read() as unit:
        results = unit.ledger.results(job.job_id, 1)
    assert results.latest(op_type) == results.of_run(op_type) == RESULTS[op_type]
    found = row(bench)
    assert (found["state"], found["result_code"], found["finished_at"] is not None) == ("finished", "ok", True)


def test_the_next_holder_learns_that_the_op_was_started(bench: Bench) -> None:
    job = held(bench)
    start(bench, job)
    later = next_holder(bench, job)
    assert start(bench, later) == StartedOp("k", OpType.HEAD, 1, later.fence, seen=True)


def test_who_has_read_the_jobs_ops_learns_alike_which_were_started(bench: Bench) -> None:
    """As a claim does it, which spares the second look."""
    job = held(bench)
    start(bench, job)
    later = next_holder(bench, job)
    with bench.database.write() as unit:
        unit.ledger.results(later.job_id, 1)
        assert unit.ledger.start("k", OpType.HEAD, later) == StartedOp("k", OpType.HEAD, 1, later.fence, seen=True)
        assert not unit.ledger.start("another", OpType.HEAD, later).seen


def test_a_finished_op_is_replayed_with_its_result_and_run(bench: Bench) -> None:
    job = held(bench)
    finish(bench, start(bench, job))
    later = next_holder(bench, job, new_run=True)
    assert start(bench, later) == StartedOp("k", OpType.HEAD, 2, later.fence, seen=True, prior=HEAD, prior_run=1)


def test_finishing_twice_keeps_the_first_result_its_code_and_its_time(bench: Bench) -> None:
    job = held(bench)
    op = start(bench, job)
    finish(bench, op)
    first = row(bench)
    finish(bench, op, OTHER, "other")
    assert row(bench) == first
    later = next_holder(bench, job, new_run=True)
    finish(bench, start(bench, later), OTHER, "other")
    assert stored(bench) == HEAD
    assert {name: value for name, value in row(bench).items() if name not in ("run", "fence")} == {
        name: value for name, value in first.items() if name not in ("run", "fence")
    }


def test_an_op_counts_for_a_new_run_once_that_run_has_recorded_it(bench: Bench) -> None:
    job = held(bench)
    finish(bench, start(bench, job))
    later = next_holder(bench, job, new_run=True)
    op = start(bench, later)
    with bench.database.read() as unit:
        results = unit.ledger.results(job.job_id, 2)
    assert (results.latest(OpType.HEAD), results.of_run(OpType.HEAD)) == (HEAD, None)  # started is not recorded
    again = next_holder(bench, later)
    assert start(bench, again).prior_run == 1  # and a crash in between leaves it so
    finish(bench, start(bench, again))
    with bench.database.read() as unit:
        assert unit.ledger.results(job.job_id, 2).of_run(OpType.HEAD) == HEAD
    with pytest.raises(LeaseLost):
        finish(bench, op)


def test_the_newest_result_of_a_kind_is_the_latest(bench: Bench) -> None:
    job = held(bench)
    finish(bench, start(bench, job, "run1"))
    later = next_holder(bench, job, new_run=True)
    finish(bench, start(bench, later, "run2"), OTHER)
    with bench.database.read() as unit:
        assert unit.ledger.results(job.job_id, 2).latest(OpType.HEAD) == OTHER
        assert unit.ledger.results(UNKNOWN, 1).latest(OpType.HEAD) is None


def test_of_two_holders_only_the_later_one_finishes(bench: Bench) -> None:
    job = held(bench)
    early = start(bench, job)
    late = start(bench, next_holder(bench, job))
    before = everything(bench.database)
    with pytest.raises(LeaseLost):
        finish(bench, early, OTHER)
    with bench.database.write() as unit:
        unit.ledger.fail(early, "http_404")
    assert everything(bench.database) == before
    finish(bench, late)
    assert stored(bench) == HEAD


def test_an_op_that_nobody_started_cannot_be_finished(bench: Bench) -> None:
    with pytest.raises(LeaseLost):
        finish(bench, StartedOp("k", OpType.HEAD, 1, 1, seen=False))


def test_a_failed_op_is_no_result_and_is_performed_again(bench: Bench) -> None:
    job = held(bench)
    op = start(bench, job)
    with bench.database.write() as unit:
        unit.ledger.fail(op, "http_503")
    assert (row(bench)["state"], row(bench)["result_code"]) == ("failed", "http_503")
    assert stored(bench) is None
    again = start(bench, next_holder(bench, job))
    assert (again.seen, again.prior) == (True, None)
    assert (row(bench)["state"], row(bench)["result_code"]) == ("started", None)
    finish(bench, again)
    assert stored(bench) == HEAD


def test_a_finished_op_cannot_fail(bench: Bench) -> None:
    op = start(bench, held(bench))
    finish(bench, op)
    before = everything(bench.database)
    with bench.database.write() as unit:
        unit.ledger.fail(op, "http_503")
    assert everything(bench.database) == before


def test_an_op_whose_holder_was_overtaken_is_marked_and_can_be_started_again(bench: Bench) -> None:
    job, other, finished = held(bench), held(bench), held(bench)
    start(bench, job)
    start(bench, other, "live")
    finish(bench, start(bench, finished, "done"))
    later = next_holder(bench, job)
    next_holder(bench, finished)
    with bench.database.write() as unit:
        assert unit.ledger.mark_abandoned(0) == 0
        assert unit.ledger.mark_abandoned(9) == 1
        assert unit.ledger.mark_abandoned(9) == 0
    assert (row(bench)["state"], row(bench)["result_code"]) == ("abandoned", "fence_overtaken")
    assert (row(bench, "live")["state"], row(bench, "done")["state"]) == ("started", "finished")
    assert stored(bench) is None
    assert start(bench, later) == StartedOp("k", OpType.HEAD, 1, later.fence, seen=True)
    assert row(bench)["state"] == "started"


def test_a_result_of_another_type_is_refused_before_anything_is_written(bench: Bench) -> None:
    op = start(bench, held(bench))
    before = everything(bench.database)
    with pytest.raises(ResultUnreadable):
        finish(bench, op, RESULTS[OpType.STREAM])
    assert everything(bench.database) == before


def test_a_stored_result_that_cannot_be_read_is_an_error_and_never_a_guess(bench: Bench) -> None:
    op = start(bench, held(bench))
    finish(bench, op)
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_ops).values(result_json='{"v":1,"http_status":"20'))
    with pytest.raises(ResultUnreadable):
        stored(bench)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"state": "finished"}, id="finished without a result"),
        pytest.param({"result_json": "{}", "finished_at": after(0.0)}, id="a result of what is not finished"),
        pytest.param({"state": "odd"}, id="no such state"),
        pytest.param({"job_id": UNKNOWN}, id="no such job"),
    ],
)
def test_the_tables_themselves_refuse_half_a_record(bench: Bench, values: dict[str, Any]) -> None:
    start(bench, held(bench))
    with pytest.raises(IntegrityError), bench.database.engine.begin() as connection:
        connection.execute(sa.update(artifact_ops).values(**values))


def test_ops_are_shown_in_their_order_and_without_pointers(bench: Bench) -> None:
    job = held(bench)
    finish(bench, start(bench, job, "a"))
    finish(bench, start(bench, job, "b", OpType.FINALIZE), RESULTS[OpType.FINALIZE])
    later = next_holder(bench, job, new_run=True)
    start(bench, later, "c")
    bench.fail(later, FOR_GOOD)
    with bench.database.read() as unit:
        ops = unit.owned(OWN).ops(job.job_id)
    assert [(op.op_key, op.run, op.op_type, op.state) for op in ops] == [
        ("a", 1, "HEAD", "finished"),
        ("b", 1, "FINALIZE", "finished"),
        ("c", 2, "HEAD", "started"),
    ]
    assert ops[1].result == {"sha256": "0" * 64, "size": 7, "already_there": False}
    assert ops[2].result is None
