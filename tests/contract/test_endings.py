"""The end of a claim in one step, on both engines: as by separate steps, all of it or nothing (ADR 42, LEDGER-3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dlpipe.core import flow, states
from dlpipe.core.errors import IllegalTransition, LeaseLost, LedgerUnavailable
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Claimed, Ending, Joined, Onward, StartedOp, Unit
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
from dlpipe.db import SqlDatabase, endings
from dlpipe.db.clock import after
from dlpipe.db.ready import Ready, say
from dlpipe.db.schema import metadata
from tests.ledgers import LEASE_S, OWN, WAY, Bench, everything, looking
from tests.postgres import Postgres
from tests.servers import wait_until

S = State
RESULTS: dict[str, Result] = {
    "head": HeadResult(200, "f" * 64, etag='"ü"', content_length=7),
    "resume_decide": ResumeResult("fresh", "new"),
    "stream": StreamResult("0" * 64, 7, 0, 7, 3, 1),
    "finalize": FinalizeResult("0" * 64, 7, "local:x", already_there=False),
    "index": IndexResult("0" * 64, "local:x", "u"),
    "dedupe": DedupeResult(DedupeAction.COPY, 0),
}
OTHER = HeadResult(404, "0" * 64)
STATE_OF = dict(WAY)
BEFORE = {"head": S.PLANNED} | {later: earlier for (_, earlier), (later, _) in pairwise(WAY)}
"""In which state a job waits for that stage."""

Hand = tuple[str, tuple[str, ...], str]
"""The stage that is claimed, those that are joined, and the one that is claimed next."""
PLAIN: list[Hand] = [(name, (), "") for name, _ in WAY]
JOINED: list[Hand] = [
    ("head", ("resume_decide",), ""),
    ("finalize", ("index",), ""),
    ("finalize", ("index", "dedupe"), ""),
    ("index", ("dedupe",), ""),
]
ONWARD: list[Hand] = [(name, (), later) for (name, _), (later, _) in pairwise(WAY)]
BOTH: list[Hand] = [("head", ("resume_decide",), "stream"), ("finalize", ("index",), "dedupe")]


def name_of(hand: Hand) -> str:
    first, joined, onward = hand
    return "+".join([first, *joined]) + (f">{onward}" if onward else "")


End = Callable[[SqlDatabase, Ending], bool]


def alone(database: SqlDatabase, ending: Ending) -> bool:
    with database.single() as lone:
        return lone.end(ending)


def within(database: SqlDatabase, ending: Ending) -> bool:
    with database.write() as unit:
        return unit.endings.end(ending)


@pytest.fixture(params=[alone, within], ids=["alone", "in a transaction"])
def end(request: pytest.FixtureRequest) -> End:
    found: End = request.param
    return found


_numbers = count()


def claim(bench: Bench, stage: str, job_id: str | None = None, **columns: Any) -> tuple[ArtifactJob, StartedOp]:
    """Hold the stage of a (new) job, its op started, as the runner does."""
    if job_id is None:
        job_id = bench.carry(bench.job(), BEFORE[stage])
    if columns:
        bench.set(job_id, **columns)
    with bench.database.write() as unit:
        return start(unit, stage, job_id, f"key-{next(_numbers)}")


def start(unit: Unit, stage: str, job_id: str, key: str, token: str = "t") -> tuple[ArtifactJob, StartedOp]:
    row = flow.stage(stage)
    claimed = unit.jobs.claim(row, job_id, 1, token, LEASE_S)
    assert isinstance(claimed, Claimed), claimed
    return claimed.job, unit.ledger.start(key, row.op, claimed.job)


def ending(job: ArtifactJob, op: StartedOp, hand: Hand, entered: State | None = None) -> Ending:
    first, joined, onward = hand
    return Ending(
        job, flow.stage(first), op, RESULTS[first], entered or STATE_OF[first],
        tuple(Joined(flow.stage(name), f"{op.op_key}-{name}", RESULTS[name], STATE_OF[name]) for name in joined),
        Onward(flow.stage(onward), f"{op.op_key}-{onward}", LEASE_S) if onward else None,
    )  # fmt: skip


def step_by_step(unit: Unit, one: Ending) -> None:
    """What an ending says, as the runner wrote it when each stage had a message of its own."""
    job, op = one.job, one.op
    unit.jobs.advance(job, one.stage, one.entered)
    unit.ledger.finish(op, one.result, "ok")
    for joined in one.joined:
        job, op = start(unit, joined.stage.name, job.job_id, joined.op_key)
        unit.jobs.advance(job, joined.stage, joined.state)
        unit.ledger.finish(op, joined.result, "ok")
    if one.onward is not None:
        start(unit, one.onward.stage.name, job.job_id, one.onward.op_key)


def rows(connection: sa.Connection, *but: str) -> dict[str, list[Any]]:
    """Every row of every table; of times only whether they are set."""
    found = {}
    for table in metadata.sorted_tables:
        told = [
            {
                name: (value is not None if name.endswith(("_at", "_until", "_since")) else value)
                for name, value in row.items()
                if name not in but
            }
            for row in connection.execute(sa.select(table)).mappings()
        ]
        found[table.name] = sorted(map(repr, told))
    return found


def would_be(bench: Bench, work: Callable[[Unit], None], *but: str) -> dict[str, list[Any]]:
    """The rows as they are after that, of which nothing stays."""
    with bench.database.write() as unit:
        work(unit)
        found = rows(unit._connection, *but)
        unit.rollback()
    return found


def now_are(bench: Bench, *but: str) -> dict[str, list[Any]]:
    with looking(bench.database) as connection:
        return rows(connection, *but)


def op_rows(bench: Bench, job_id: str) -> dict[str, Any]:
    with looking(bench.database) as connection:
        table = metadata.tables["artifact_ops"]
        found = connection.execute(sa.select(table).where(table.c.job_id == job_id)).mappings()
        return {row["op_key"]: row for row in found}


# ── as by separate steps ──────────────────────────────────────────────────────────────────────────

COLUMNS: dict[str, dict[str, Any]] = {
    "a first run": {},
    "a replay that was put off": {
        "purpose": "replay", "replay_from": "stream", "stood": "SKIPPED_DUPLICATE", "attempts": 2,
        "postponed_since": after(-50.0), "node": "here",
    },
}  # fmt: skip


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("hand", PLAIN + ONWARD, ids=name_of)
def test_an_ending_leaves_the_rows_that_the_separate_steps_leave(
    bench: Bench, end: End, hand: Hand, columns: str
) -> None:
    job, op = claim(bench, hand[0], **COLUMNS[columns])
    claim(bench, "head")  # a bystander, of whom nothing changes
    one = ending(job, op, hand)
    wanted = would_be(bench, lambda unit: step_by_step(unit, one))
    assert end(bench.database, one)
    assert now_are(bench) == wanted


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("hand", JOINED + BOTH, ids=name_of)
def test_what_is_joined_leaves_the_same_rows_but_for_the_fences(
    bench: Bench, end: End, hand: Hand, columns: str
) -> None:
    job, op = claim(bench, hand[0], **COLUMNS[columns])
    one = ending(job, op, hand)
    wanted = would_be(bench, lambda unit: step_by_step(unit, one), "fence")
    assert end(bench.database, one)
    assert now_are(bench, "fence") == wanted
    fences = {key: row["fence"] for key, row in op_rows(bench, job.job_id).items()}
    assert {fences[op.op_key], *(fences[each.op_key] for each in one.joined)} == {job.fence}
    assert bench.row(job.job_id)["fence"] == job.fence + bool(one.onward)
    if one.onward is not None:
        assert fences[one.onward.op_key] == job.fence + 1


def test_a_head_that_finds_the_file_known_is_an_end(bench: Bench, end: End) -> None:
    job, op = claim(bench, "head", purpose="refresh")
    one = ending(job, op, ("head", (), ""), S.SKIPPED_DUPLICATE)
    wanted = would_be(bench, lambda unit: step_by_step(unit, one))
    assert end(bench.database, one)
    assert now_are(bench) == wanted
    row = bench.row(job.job_id)
    assert (row["state"], row["status"], row["purpose"], row["published_at"]) == (
        S.SKIPPED_DUPLICATE, "skipped", None, None,
    )  # fmt: skip


def test_who_goes_on_has_the_whole_time_of_a_lease_under_the_same_token(bench: Bench, end: End) -> None:
    job, op = claim(bench, "head")
    bench.set(job.job_id, lease_until=after(1.0))
    assert end(bench.database, ending(job, op, ("head", (), "resume_decide")))
    with looking(bench.database) as connection:
        at = connection.scalar(sa.select(after(LEASE_S - 60)))
    row = bench.row(job.job_id)
    assert (row["lease_owner"], row["fence"], row["lease_until"] > at) == ("t", job.fence + 1, True)
    held = replace(job, fence=job.fence + 1)
    with bench.database.write() as unit:
        assert unit.jobs.renew([(job.job_id, job.fence)], LEASE_S) == {job.job_id}
        assert unit.jobs.renew([(job.job_id, held.fence)], LEASE_S) == set()
    again = ending(held, StartedOp(f"{op.op_key}-resume_decide", OpType.RESUME, 1, held.fence, seen=False), (
        "resume_decide", (), "",
    ))  # fmt: skip
    assert end(bench.database, again)
    assert bench.row(job.job_id)["state"] == S.RESUME_OK


def test_an_op_that_an_earlier_run_finished_keeps_its_first_result(bench: Bench, end: End) -> None:
    job, op = claim(bench, "head")
    with bench.database.write() as unit:
        unit.ledger.finish(op, OTHER, "first")
    assert end(bench.database, ending(job, op, ("head", (), "")))
    with bench.database.read() as unit:
        assert unit.ledger.get_effect_result(op.op_key) == OTHER
    row = op_rows(bench, job.job_id)[op.op_key]
    assert (row["state"], row["result_code"]) == ("finished", "first")


# ── refused, and nothing is changed ───────────────────────────────────────────────────────────────


def _overtake(bench: Bench, job: ArtifactJob) -> None:
    bench.expire(job.job_id)
    assert isinstance(bench.claim("head", job.job_id, token="another"), Claimed)


def _hand_back(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(job)


def _pause(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        unit.owned(OWN).pause(job.job_id)


def _cancel(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.write() as unit:
        unit.owned(OWN).cancel(job.job_id)


def _move_fence(bench: Bench, job: ArtifactJob) -> None:
    bench.set(job.job_id, fence=job.fence + 1)


def _free(bench: Bench, job: ArtifactJob) -> None:
    bench.free(job.job_id)


def _make_due(bench: Bench, job: ArtifactJob) -> None:
    bench.set(job.job_id, due_at=after(0.0))


def _take_op(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE artifact_ops SET fence = fence + 1"))


def _purge(bench: Bench, job: ArtifactJob) -> None:
    with bench.database.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM jobs"))


LOST = (_overtake, _hand_back, _pause, _cancel, _move_fence, _free, _make_due, _take_op, _purge)
HANDS: list[Hand] = [("head", (), ""), ("head", (), "resume_decide"), ("head", ("resume_decide",), "stream")]


@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("hand", HANDS, ids=name_of)
def test_a_claim_that_is_over_ends_nothing(
    bench: Bench, end: End, hand: Hand, lose: Callable[[Bench, ArtifactJob], None]
) -> None:
    job, op = claim(bench, hand[0])
    lose(bench, job)
    before = everything(bench.database)
    one = ending(job, op, hand)
    # Onward it only says that it may not be; the plain ending, which the runner then tries, tells why.
    if one.onward is not None:
        with suppress(LeaseLost):
            assert not end(bench.database, one)
        assert everything(bench.database) == before
        one = replace(one, onward=None)
    with pytest.raises(LeaseLost):
        end(bench.database, one)
    assert everything(bench.database) == before


@pytest.mark.parametrize("hand", HANDS, ids=name_of)
def test_a_state_that_the_table_does_not_lead_on_from_is_told(bench: Bench, end: End, hand: Hand) -> None:
    job, op = claim(bench, hand[0])
    bench.set(job.job_id, state=S.FINALIZED.value)
    before = everything(bench.database)
    one = ending(job, op, hand)
    if one.onward is not None:
        assert not end(bench.database, one)
    with pytest.raises(IllegalTransition):
        end(bench.database, replace(one, onward=None))
    assert everything(bench.database) == before


@pytest.mark.parametrize("hand", ONWARD + BOTH, ids=name_of)
def test_a_paused_job_is_not_claimed_onward_and_its_end_is_recorded_all_the_same(
    bench: Bench, end: End, hand: Hand
) -> None:
    """A pause raises the fence; this is the guard of a claim, which asks for it by itself."""
    job, op = claim(bench, hand[0])
    bench.set(job.job_id, paused_at=after(0.0))
    before = everything(bench.database)
    one = ending(job, op, hand)
    assert not end(bench.database, one)
    assert everything(bench.database) == before
    plain = replace(one, onward=None)
    wanted = would_be(bench, lambda unit: _advanced(unit, replace(plain, joined=())), "fence")
    if not plain.joined:
        assert end(bench.database, plain)
        assert now_are(bench, "fence") == wanted
    else:
        assert end(bench.database, plain)
        assert (bench.row(job.job_id)["state"], bench.row(job.job_id)["lease_owner"]) == (plain.state, None)


def _advanced(unit: Unit, one: Ending) -> None:
    unit.jobs.advance(one.job, one.stage, one.entered)
    unit.ledger.finish(one.op, one.result, "ok")


_OFF_THE_PATH: dict[str, Hand] = {
    "a stage is left out": ("head", ("stream",), ""),
    "backwards": ("stream", ("resume_decide",), ""),
    "beyond the end": ("dedupe", ("head",), ""),
    "onward past one": ("head", (), "stream"),
    "onward to itself": ("head", (), "head"),
    "onward beyond the end": ("dedupe", (), "head"),
}


@pytest.mark.parametrize("hand", _OFF_THE_PATH.values(), ids=list(_OFF_THE_PATH))
def test_a_path_that_the_table_does_not_have_is_refused(bench: Bench, end: End, hand: Hand) -> None:
    job, op = claim(bench, hand[0])
    before = everything(bench.database)
    with pytest.raises(ValueError, match="does not"):
        end(bench.database, ending(job, op, hand))
    assert everything(bench.database) == before


def test_every_step_that_the_table_has_can_be_an_onward_one(bench: Bench, end: End) -> None:
    """The whole way in one hand: each claim but the first is made with the end of the one before."""
    job, op = claim(bench, "head")
    for (name, _), (later, _) in pairwise(WAY):
        one = ending(job, op, (name, (), later))
        assert end(bench.database, one)
        assert one.onward is not None
        job = replace(job, fence=job.fence + 1, state=states.on_claim(later) or STATE_OF[name])
        assert bench.row(job.job_id)["state"] == job.state
        op = StartedOp(one.onward.op_key, one.onward.stage.op, 1, job.fence, seen=False)
    assert end(bench.database, ending(job, op, ("dedupe", (), "")))
    row = bench.row(job.job_id)
    assert (row["state"], row["status"], row["fence"], row["lease_owner"]) == (S.DEDUPED, "completed", len(WAY), None)
    assert {row["state"] for row in op_rows(bench, job.job_id).values()} == {"finished"}


def test_two_that_end_one_claim_at_the_same_time_end_it_once(bench: Bench, end: End) -> None:
    for _ in range(10):
        job, op = claim(bench, "head")
        one = ending(job, op, ("head", (), "resume_decide"))
        told: list[bool] = []
        together = threading.Barrier(2)

        def try_it(one: Ending = one, told: list[bool] = told, together: threading.Barrier = together) -> None:
            together.wait()
            told.append(end(bench.database, one))

        threads = [threading.Thread(target=try_it) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == [False, True]
        assert bench.row(job.job_id)["fence"] == job.fence + 1


def test_a_transaction_that_fails_behind_an_ending_takes_it_back(bench: Bench) -> None:
    job, op = claim(bench, "finalize")
    before = everything(bench.database)

    def stumble() -> None:
        with bench.database.write() as unit:
            assert unit.endings.end(ending(job, op, ("finalize", ("index",), "dedupe")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()
    assert everything(bench.database) == before


def test_ops_that_began_at_one_moment_are_told_in_the_order_of_their_stages(bench: Bench) -> None:
    job, op = claim(bench, "finalize")
    with bench.database.engine.begin() as connection:
        # However the rows lie: what is joined is written by one statement, at one moment.
        for at, kind in enumerate(("DEDUPE", "INDEX", "FINALIZE", "STREAM", "RESUME", "HEAD")):
            text = "INSERT INTO artifact_ops (op_key, job_id, run, op_type, state, fence, started_at) SELECT"
            text += f" 'x{at}', job_id, 7, '{kind}', 'failed', fence, started_at FROM artifact_ops WHERE op_key = :key"
            connection.execute(sa.text(text), {"key": op.op_key})
    with bench.database.read() as unit:
        told = [one.op_type for one in unit.owned(OWN).ops(job.job_id) if one.run == 7]
    assert told == list(OpType)


# ── a claim is given back by its token only ───────────────────────────────────────────────────────


def test_a_claim_under_the_same_fence_that_is_somebody_elses_is_not_handed_back(bench: Bench) -> None:
    """Who claimed onward and heard no answer hands back under a fence that another holder may have by now."""
    job, _ = claim(bench, "head")
    guess = replace(job, fence=job.fence + 1)
    _overtake(bench, job)
    assert bench.row(job.job_id)["fence"] == guess.fence
    before = everything(bench.database)
    with bench.database.write() as unit:
        assert not unit.jobs.hand_back(guess)
        assert not unit.jobs.hand_back(job)
    assert everything(bench.database) == before


def test_a_claim_onward_of_which_nobody_heard_is_handed_back_under_the_next_fence(bench: Bench, end: End) -> None:
    job, op = claim(bench, "head")
    assert end(bench.database, ending(job, op, ("head", (), "resume_decide")))
    with bench.database.write() as unit:
        assert not unit.jobs.hand_back(job)
        assert unit.jobs.hand_back(replace(job, fence=job.fence + 1))
    row = bench.row(job.job_id)
    assert (row["state"], row["lease_owner"], row["due_at"] is not None) == (S.HEAD_DONE, None, True)


# ── on PostgreSQL: a connection that is lost ──────────────────────────────────────────────────────


@pytest.fixture
def own(postgres_url: str) -> Iterator[Bench]:
    """The ledger on PostgreSQL, whose connections the test cuts."""
    database = SqlDatabase(postgres_url)
    yield Bench(database)
    database.close()


@contextmanager
def admin(postgres: Postgres, bench: Bench) -> Iterator[psycopg.Connection[Any]]:
    assert bench.database.url.database is not None
    with postgres.connect(bench.database.url.database) as connection:
        yield connection


def cut(postgres: Postgres, bench: Bench, which: str = "true") -> int:
    """End the sessions of the package's own connections on the server."""
    with admin(postgres, bench) as connection:
        found = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND application_name = 'dlpipe' AND {which}".encode()
        )
        return len(found.fetchall())


LONE: list[Hand] = [
    ("head", (), ""), ("head", (), "resume_decide"), ("head", ("resume_decide",), "stream"),
    ("stream", (), "finalize"), ("stream", (), ""), ("dedupe", (), ""),
]  # fmt: skip


@pytest.mark.parametrize("hand", LONE, ids=name_of)
def test_an_ending_after_a_restart_of_the_server_is_recorded(own: Bench, postgres: Postgres, hand: Hand) -> None:
    job, op = claim(own, hand[0])
    one = ending(job, op, hand)
    wanted = would_be(own, lambda unit: step_by_step(unit, one), "fence")
    assert cut(postgres, own)
    assert alone(own.database, one)
    assert now_are(own, "fence") == wanted


class Lossy:
    """`SqlEndings._is_written`, whose first answer gets lost; `first` is what happens instead of it, or before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: Callable[[endings.SqlEndings, Ending], None]) -> None:
        self.times = 0
        real = endings.SqlEndings._is_written

        def written(this: endings.SqlEndings, one: Ending) -> bool:
            self.times += 1
            if self.times > 1:
                return real(this, one)
            first(this, one)
            say(this._connection, "SELECT 1")
            raise AssertionError("the connection was not cut")

        self.real = real
        monkeypatch.setattr(endings.SqlEndings, "_is_written", written)


@pytest.mark.parametrize("hand", LONE, ids=name_of)
def test_an_ending_whose_answer_is_lost_is_recorded_once_and_told_so(
    own: Bench, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, hand: Hand
) -> None:
    job, op = claim(own, hand[0])
    one = ending(job, op, hand)
    wanted = would_be(own, lambda unit: step_by_step(unit, one), "fence")
    stood: list[Any] = []

    def first(this: endings.SqlEndings, one: Ending) -> None:
        assert lossy.real(this, one)
        stood.append(everything(own.database))
        cut(postgres, own)

    lossy = Lossy(monkeypatch, first)
    assert alone(own.database, one)
    assert lossy.times == 2
    assert everything(own.database) == stood[0]  # also the times: nothing was written again
    assert now_are(own, "fence") == wanted


def _next_holder(bench: Bench, job: ArtifactJob, stage: str) -> None:
    bench.expire(job.job_id)
    assert isinstance(bench.claim(stage, job.job_id, token="another"), Claimed)


@pytest.mark.parametrize("hand", LONE, ids=name_of)
@pytest.mark.parametrize("how", ["overtaken", "handed back", "paused", "canceled"])
def test_an_ending_that_never_came_through_and_was_overtaken_meanwhile_is_lost(
    own: Bench, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, hand: Hand, how: str
) -> None:
    job, op = claim(own, hand[0])
    before: list[Any] = []

    def first(_: endings.SqlEndings, one: Ending) -> None:
        match how:
            case "overtaken":
                _next_holder(own, job, one.stage.name)
            case "handed back":
                _hand_back(own, job)
            case "paused":
                _pause(own, job)
            case _:
                _cancel(own, job)
                own.set(job.job_id, fence=job.fence + 1)  # one that is past that is not canceled, but lost all the same
        before.append(everything(own.database))
        cut(postgres, own)

    Lossy(monkeypatch, first)
    one = ending(job, op, hand)
    if one.onward is not None:
        assert not alone(own.database, one)
        one = replace(one, onward=None)
    with pytest.raises(LeaseLost):
        alone(own.database, one)
    assert everything(own.database) == before[0]


def test_an_ending_whose_answer_is_lost_and_that_somebody_has_gone_on_from_is_lost(
    own: Bench, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, op = claim(own, "head")

    def first(this: endings.SqlEndings, one: Ending) -> None:
        assert lossy.real(this, one)
        _next_holder(own, job, "resume_decide")
        cut(postgres, own)

    lossy = Lossy(monkeypatch, first)
    one = ending(job, op, ("head", (), "resume_decide"))
    assert not alone(own.database, one)
    with pytest.raises(LeaseLost):
        alone(own.database, replace(one, onward=None))
    assert own.row(job.job_id)["lease_owner"] == "another"


def test_an_ending_that_is_possible_again_only_after_it_was_looked_for_is_not_told_as_recorded_and_undone(
    own: Bench, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered and what stands are one: the look opens a transaction, in which nothing may be written."""
    job, op = claim(own, "head")
    own.set(job.job_id, paused_at=after(0.0))
    Lossy(monkeypatch, lambda *_: (cut(postgres, own), None)[1])
    real = endings._stands

    def look(connection: sa.Connection, one: Ending) -> bool:
        found = real(connection, one)
        with admin(postgres, own) as other:
            other.execute("UPDATE artifact_jobs SET paused_at = NULL")
        return found

    monkeypatch.setattr(endings, "_stands", look)
    told = alone(own.database, ending(job, op, ("head", (), "resume_decide")))
    assert told == (own.row(job.job_id)["state"] == S.HEAD_DONE)


@pytest.mark.parametrize("hand", [("head", (), ""), ("head", ("resume_decide",), "stream")], ids=name_of)
def test_a_connection_that_is_cut_while_the_ending_waits_is_no_reason_to_fail(
    own: Bench, postgres: Postgres, hand: Hand
) -> None:
    job, op = claim(own, hand[0])
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(alone(own.database, ending(job, op, hand))))
    waits = "wait_event_type = 'Lock'"
    with admin(postgres, own) as holder, holder.transaction():
        holder.execute("SELECT 1 FROM artifact_jobs FOR UPDATE")
        thread.start()
        wait_until(lambda: cut(postgres, own, waits) == 1, "the ending to wait for the row")
        wait_until(lambda: _waiting(postgres, own) == 1, "it to be said once more")
    thread.join(30)
    assert told == [True]
    row = own.row(job.job_id)
    assert row["state"] == (S.STREAMING if hand[2] else S.HEAD_DONE)


def _waiting(postgres: Postgres, bench: Bench) -> int:
    with admin(postgres, bench) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'dlpipe' AND wait_event_type = 'Lock'"
        ).fetchone()
    return int(found[0]) if found else 0


def test_a_server_that_stays_away_is_told_as_unavailable(own: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job, op = claim(own, "head")
    own.database.close()
    gone = SqlDatabase("postgresql+psycopg://u@/d?host=/nowhere")
    with pytest.raises(LedgerUnavailable):
        alone(gone, ending(job, op, ("head", (), "")))
    with pytest.raises(LedgerUnavailable), gone.glance() as glance:
        glance.registry.first_copy("s", "0" * 64)
    gone.close()


def test_an_ending_by_itself_leaves_no_transaction_behind(own: Bench, postgres: Postgres) -> None:
    for hand in LONE:
        job, op = claim(own, hand[0])
        one = ending(job, op, hand)
        assert alone(own.database, one)
        with pytest.raises((LeaseLost, IllegalTransition)):
            alone(own.database, replace(one, onward=None))
    with admin(postgres, own) as connection:
        found = connection.execute(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'dlpipe'"
        ).fetchall()
    assert {state for (state,) in found} == {"idle"}


def test_an_ending_by_itself_is_one_statement(own: Bench) -> None:
    """Neither BEGIN nor COMMIT: each of them is a round trip."""
    job, op = claim(own, "head")
    said: list[str] = []
    real = Ready.__call__

    def noted(this: Any, connection: sa.Connection, values: Any) -> Any:
        assert not connection.in_transaction()
        said.append("once")
        return real(this, connection, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ready, "__call__", noted)
        assert alone(own.database, ending(job, op, ("head", ("resume_decide",), "stream")))
    assert said == ["once"]


def test_a_question_after_a_restart_of_the_server_is_answered(own: Bench, postgres: Postgres) -> None:
    with own.database.write() as unit:
        unit.registry.add_copy("s", "0" * 64, "local:x", 7, own.job())
    for _ in range(2):
        with own.database.glance() as glance:
            found = glance.registry.first_copy("s", "0" * 64)
            assert (found and found.pointer) == "local:x"
            assert cut(postgres, own)
            assert glance.registry.known_url("default", "http://x/", None) is None
            assert cut(postgres, own)
            assert not glance.registry.has_bytes("default", "0" * 64)
            assert cut(postgres, own)
            assert glance.registry.result_of("00000000-0000-5000-8000-000000000000", "0" * 64) is None
        assert cut(postgres, own)


def test_the_job_s_row_comes_first_in_the_one_statement(own: Bench, postgres: Postgres) -> None:
    """As in a claim and in a wish: who locks the same rows in another order could block the other for good."""
    job, op = claim(own, "finalize")
    with admin(postgres, own) as connection, connection.transaction():
        connection.execute("CREATE TABLE seen (at serial, name text)")
        connection.execute(
            "CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO seen (name) VALUES (TG_TABLE_NAME); RETURN NEW; END'"
        )
        for table in ("jobs", "artifact_jobs", "artifact_ops"):
            when = f"BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW"
            connection.execute(f"CREATE TRIGGER noted {when} EXECUTE FUNCTION note_it()".encode())
    try:
        assert alone(own.database, ending(job, op, ("finalize", ("index",), "dedupe")))
        with admin(postgres, own) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM seen ORDER BY at").fetchall()]
    finally:
        with admin(postgres, own) as connection:
            connection.execute("DROP FUNCTION note_it CASCADE")
            connection.execute("DROP TABLE seen")
    assert names[0] == "artifact_jobs"
    assert sorted(names) == ["artifact_jobs", "artifact_ops", "artifact_ops", "artifact_ops", "jobs"]
