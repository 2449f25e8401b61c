"""Nodes with staging folders of their own, in the ledger (OPS-4): signs of life, and whose jobs are where."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.core.layout import part_slug
from dlpipe.core.nodes import Node, NodePolicy
from dlpipe.core.ports import Claim, Claimed, Past, Refused
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after, now
from dlpipe.db.schema import nodes
from tests.ledgers import SOON, Bench

S = State
BOTH = (Queue.NET, Queue.DISK)
A = NodePolicy("a", beat_s=10.0, gone_after_s=120.0)
B = NodePolicy("b", beat_s=10.0, gone_after_s=120.0)
DISK_OF = {"a": "disk-of-a", "b": "disk-of-b"}


def beat(bench: Bench, here: NodePolicy, *kinds: Queue, folder_id: str | None = None) -> Node | None:
    with bench.database.write() as unit:
        return unit.nodes.beat(here, kinds, folder_id or DISK_OF[here.name])


def known(bench: Bench) -> dict[str, Node]:
    with bench.database.read() as unit:
        return {node.name: node for node in unit.nodes.list_()}


def heard(bench: Bench, name: str, ago_s: float, **more: Any) -> None:
    """As if that had been its last sign of life, after a long row of them."""
    values = {"net_at": after(-ago_s), "disk_at": after(-ago_s), "steady_since": after(-9_999.0), **more}
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(nodes).where(nodes.c.name == name).values(**values))


def claim(bench: Bench, stage: str, job_id: str, here: NodePolicy, run: int = 1) -> Claim:
    with bench.database.write() as unit:
        return unit.jobs.claim(flow.stage(stage), job_id, run, "t", 600.0, here)


def carry_out(bench: Bench, stage: str, job_id: str, here: NodePolicy, target: State) -> None:
    claimed = claim(bench, stage, job_id, here)
    assert isinstance(claimed, Claimed), claimed
    bench.advance(claimed.job, stage, target)


def begun(bench: Bench, here: NodePolicy = A) -> str:
    """A job that the node has taken, and that waits for its stream stage there."""
    job_id = bench.job()
    beat(bench, here, *BOTH)
    carry_out(bench, "head", job_id, here, S.HEAD_DONE)
    carry_out(bench, "resume_decide", job_id, here, S.RESUME_OK)
    return job_id


def on(bench: Bench, name: str) -> tuple[int, list[str]]:
    with bench.database.read() as unit:
        return unit.nodes.jobs_on(name)


# ── signs of life ─────────────────────────────────────────────────────────────────────────────────


def test_a_node_is_heard_once_each_of_its_queues_is_taken_from(bench: Bench) -> None:
    assert known(bench) == {}
    first = beat(bench, A)
    assert first is not None
    assert first.silent_s == float("inf")
    beat(bench, A, Queue.NET)
    assert known(bench)["a"].silent_s == float("inf")
    found = beat(bench, A, Queue.DISK)
    assert found is not None
    assert 0 <= found.silent_s < 10
    assert not found.drains
    assert list(known(bench)) == ["a"]


def test_its_silence_is_that_of_the_queue_that_was_not_heard_of_for_longest(bench: Bench) -> None:
    beat(bench, A, *BOTH)
    heard(bench, "a", 5.0, disk_at=after(-500.0))
    assert 499 < known(bench)["a"].silent_s < 530


def test_signs_without_a_break_are_counted_from_the_first_one(bench: Bench) -> None:
    beat(bench, A, *BOTH)
    heard(bench, "a", A.fresh_s - 10)
    kept = beat(bench, A, *BOTH)
    assert kept is not None
    assert kept.steady_s > 9_000
    heard(bench, "a", A.fresh_s + 10)
    broken = beat(bench, A, *BOTH)
    assert broken is not None
    assert broken.steady_s < 10


@pytest.mark.parametrize("silent", ["net_at", "disk_at"])
def test_a_queue_that_was_not_heard_of_breaks_them(bench: Bench, silent: str) -> None:
    beat(bench, A, *BOTH)
    heard(bench, "a", 1.0, **{silent: after(-A.fresh_s - 10)})
    found = beat(bench, A, *BOTH)
    assert found is not None
    assert found.steady_s < 10


def test_another_machine_of_the_same_name_is_refused_while_the_first_is_heard(bench: Bench) -> None:
    beat(bench, A, *BOTH)
    before = bench_row(bench, "a")
    assert beat(bench, A, *BOTH, folder_id="another disk") is None
    assert bench_row(bench, "a") == before
    heard(bench, "a", A.fresh_s + 10)
    assert beat(bench, A, *BOTH, folder_id="another disk") is not None  # it takes over from one that has ended
    assert beat(bench, A, *BOTH) is None


def bench_row(bench: Bench, name: str) -> Any:
    with bench.database.engine.connect() as connection:
        return connection.execute(sa.select(nodes).where(nodes.c.name == name)).one()


def test_drained_is_drained_until_it_is_undone(bench: Bench) -> None:
    beat(bench, A, *BOTH)
    with bench.database.write() as unit:
        assert unit.nodes.drain("a", on=True)
        assert not unit.nodes.drain("nobody", on=True)
    since = bench_row(bench, "a").drained_at
    found = beat(bench, A, *BOTH)
    assert found is not None
    assert found.drains
    with bench.database.write() as unit:
        assert unit.nodes.drain("a", on=True)
    assert bench_row(bench, "a").drained_at == since
    with bench.database.write() as unit:
        assert unit.nodes.drain("a", on=False)
    assert not known(bench)["a"].drains


# ── whose jobs ────────────────────────────────────────────────────────────────────────────────────


def test_the_first_stage_that_works_on_the_part_makes_the_job_its_nodes(bench: Bench) -> None:
    job_id = bench.job()
    beat(bench, A, *BOTH)
    carry_out(bench, "head", job_id, A, S.HEAD_DONE)
    assert bench.row(job_id)["node"] is None
    claimed = claim(bench, "resume_decide", job_id, A)
    assert isinstance(claimed, Claimed)
    assert claimed.job.node == bench.row(job_id)["node"] == "a"
    bench.advance(claimed.job, "resume_decide", S.RESUME_OK)
    assert claim(bench, "resume_decide", job_id, B) == Past(S.RESUME_OK, "a")


@pytest.mark.parametrize("stage", ["resume_decide", "stream", "finalize"])
def test_no_other_node_gets_it(bench: Bench, stage: str) -> None:
    job_id = begun(bench)
    at = {"resume_decide": S.HEAD_DONE, "stream": S.RESUME_OK, "finalize": S.STREAMING}[stage]
    bench.set(job_id, state=at)
    beat(bench, B, *BOTH)
    before = bench.row(job_id)
    assert claim(bench, stage, job_id, B) == Refused("other_node")
    assert bench.row(job_id) == before
    assert isinstance(claim(bench, stage, job_id, A), Claimed)


def test_once_the_file_has_its_place_any_node_goes_on(bench: Bench) -> None:
    job_id = begun(bench)
    carry_out(bench, "stream", job_id, A, S.STREAMING)
    assert bench.row(job_id)["node"] == "a"
    carry_out(bench, "finalize", job_id, A, S.FINALIZED)
    assert bench.row(job_id)["node"] is None
    assert isinstance(claim(bench, "index", job_id, B), Claimed)


def test_a_job_that_waits_for_its_next_run_keeps_its_node(bench: Bench) -> None:
    job_id = begun(bench)
    bench.fail(bench_claimed(bench, "stream", job_id, A), SOON)
    with bench.database.write() as unit:
        (hint,) = unit.backlog.take_due(9, 9, 9)
    assert (hint.job_id, hint.run, hint.node) == (job_id, 2, "a")
    assert isinstance(claim(bench, "head", job_id, B, run=2), Claimed)  # what asks a server may be done anywhere


def bench_claimed(bench: Bench, stage: str, job_id: str, here: NodePolicy) -> Any:
    claimed = claim(bench, stage, job_id, here)
    assert isinstance(claimed, Claimed), claimed
    return claimed.job


@pytest.mark.parametrize("why", ["drained", "silent", "one queue", "unknown"])
def test_a_node_that_takes_no_jobs_passes_them_on(bench: Bench, why: str) -> None:
    job_id = bench.job()
    beat(bench, A, *BOTH)
    carry_out(bench, "head", job_id, A, S.HEAD_DONE)
    here = A
    match why:
        case "drained":
            with bench.database.write() as unit:
                unit.nodes.drain("a", on=True)
        case "silent":
            heard(bench, "a", A.fresh_s + 10)
        case "one queue":
            heard(bench, "a", 0.0, disk_at=None)
        case _:
            here = B
    fence = bench.row(job_id)["fence"]
    assert claim(bench, "resume_decide", job_id, here) == Refused("node_takes_none")
    row = bench.row(job_id)
    assert (row["node"], row["published_at"], row["fence"], row["attempts"]) == (None, None, fence + 1, 0)
    with bench.database.write() as unit:
        assert unit.backlog.take_due(9, 9, 9) == []  # there may be no other node, and each run asks the server
    bench.set(job_id, due_at=now())
    with bench.database.write() as unit:
        (hint,) = unit.backlog.take_due(9, 9, 9)
    assert (hint.job_id, hint.run, hint.node) == (job_id, 2, None)


def test_a_job_that_no_node_takes_has_failed_in_the_end(bench: Bench) -> None:
    job_id, week = bench.job(), B.retry.postpone_max_s
    for run, waited_s in enumerate((0.0, week - 600.0, week + 1.0), start=1):
        bench.set(job_id, due_at=after(0.0), postponed_since=after(-waited_s) if waited_s else None)
        bench.advance(bench.hold("head", job_id, run=run), "head", S.HEAD_DONE)
        assert claim(bench, "resume_decide", job_id, B, run) == Refused("node_takes_none")
        view, row = bench.view(job_id), bench.row(job_id)
        assert (view.error_code, row["attempts"]) == ("node_takes_none", 0)
        assert (row["postponed_since"] is not None, row["lease_owner"]) == (True, None)
        ended = waited_s > week
        assert (view.status is Status.FAILED, row["state"] == S.FAILED, row["due_at"] is None) == (ended,) * 3
    assert "7.0 days" in (bench.view(job_id).error_message_safe or "")


def test_a_drained_node_carries_its_own_jobs_to_their_end(bench: Bench) -> None:
    job_id = begun(bench)
    with bench.database.write() as unit:
        unit.nodes.drain("a", on=True)
    carry_out(bench, "stream", job_id, A, S.STREAMING)
    carry_out(bench, "finalize", job_id, A, S.FINALIZED)
    assert on(bench, "a") == (0, [])


def test_where_staging_is_shared_nobody_asks_for_nodes(bench: Bench) -> None:
    job_id = begun(bench)
    assert isinstance(bench.claim("stream", job_id), Claimed)


# ── the jobs on a node ────────────────────────────────────────────────────────────────────────────


def test_runs_under_way_are_counted_with_those_that_somebody_holds(bench: Bench) -> None:
    waiting, held, elsewhere, later = begun(bench), begun(bench), begun(bench, B), begun(bench)
    bench_claimed(bench, "stream", held, A)
    bench.fail(bench_claimed(bench, "stream", later, A), SOON)
    assert on(bench, "a") == (2, [held])
    assert on(bench, "b") == (1, [])
    assert on(bench, "nobody") == (0, [])
    assert {waiting, elsewhere}


def test_what_waits_on_a_node_is_handed_on_to_a_fresh_run_anywhere(bench: Bench) -> None:
    waiting, held, elsewhere = begun(bench), begun(bench), begun(bench, B)
    bench_claimed(bench, "stream", held, A)
    before = {job_id: bench.row(job_id) for job_id in (waiting, held, elsewhere)}
    with bench.database.write() as unit:
        assert unit.nodes.hand_on("a") == 1
        assert unit.nodes.hand_on("a") == 0
    row = bench.row(waiting)
    assert (row["node"], row["published_at"], row["attempts"], row["run"]) == (None, None, 0, 1)
    assert row["fence"] == before[waiting]["fence"] + 1
    assert {job_id: bench.row(job_id) for job_id in (held, elsewhere)} == {
        job_id: before[job_id] for job_id in (held, elsewhere)
    }
    # What still lies in the node's queue has nothing to say any more.
    assert claim(bench, "stream", waiting, A) == Refused("out_of_order")
    with bench.database.write() as unit:
        (hint,) = unit.backlog.take_due(9, 9, 9)
    assert (hint.job_id, hint.run, hint.node) == (waiting, 2, None)


def test_a_run_that_was_sent_and_has_not_begun_is_no_longer_the_nodes(bench: Bench) -> None:
    job_id = begun(bench)
    bench.fail(bench_claimed(bench, "stream", job_id, A), SOON)
    with bench.database.write() as unit:
        assert len(unit.backlog.take_due(9, 9, 9)) == 1
    with bench.database.write() as unit:
        assert unit.nodes.hand_on("a") == 0
    row = bench.row(job_id)
    assert row["node"] is None
    assert row["published_at"] is not None  # its message is on its way, in a queue for all


def test_jobs_that_wait_for_a_message_are_told_apart_by_node(bench: Bench) -> None:
    first, second, elsewhere, placed, fresh = begun(bench), begun(bench), begun(bench, B), begun(bench), bench.job()
    bench.set(placed, state=S.FINALIZED)
    bench.set(fresh, published_at=now())
    with bench.database.read() as unit:
        found = dict(unit.nodes.waiting())
    assert found == {("stream", "a"): 2, ("stream", "b"): 1, ("index", ""): 1, ("head", ""): 1}
    with bench.database.write() as unit:
        lost = unit.backlog.take_lost(9, -1.0, ["stream", "resume_decide"], ["a"])
        assert {(hint.job_id, hint.node) for hint in lost} == {(first, "a"), (second, "a")}
        assert unit.backlog.take_lost(9, -1.0, ["stream", "resume_decide"], [""]) == []
        rest = unit.backlog.take_lost(9, -1.0, ["head", "index"], [""])
        assert {hint.job_id for hint in rest} == {placed, fresh}
    assert elsewhere


def test_a_part_is_wanted_where_its_job_is_or_may_go(bench: Bench) -> None:
    job_id = begun(bench)
    part = part_slug("default", bench.row(job_id)["canonical_url"])
    with bench.database.write() as unit:
        assert unit.backlog.wanted_parts([part]) == {part}
        assert unit.backlog.wanted_parts([part], "a") == {part}
        assert unit.backlog.wanted_parts([part], "b") == set()
        unit.nodes.unpin([job_id])
        assert unit.backlog.wanted_parts([part], "b") == {part}
