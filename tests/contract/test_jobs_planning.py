"""Plan if absent, on both engines: one row and one id per key, whoever asks how often (PLAN-2, PLAN-3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.model import MAX_MIRRORS, PlanAnswer, Scope
from dlpipe.core.purging import ArchiveFile, PurgeFilter
from dlpipe.core.states import State, Status
from dlpipe.db import SqlDatabase, planning
from dlpipe.db.clock import now
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.planning import BATCH
from dlpipe.db.schema import artifact_jobs, jobs
from tests.ledgers import FOR_GOOD, OWN, SOON, UNKNOWN, Bench, everything, spec
from tests.servers import wait_until

S = State


def test_a_new_job_is_due_and_waits_for_nobody(bench: Bench) -> None:
    asked = spec(
        "x.pdf?b=2&a=1", ext="pdf", sha256="A" * 64, media_type="application/pdf", max_bytes=7, priority=-5,
        mirrors=["https://mirror.example/x"], request_id="r", tenant_id="t", project_id="p",
    )  # fmt: skip
    assert bench.plan(asked) == [PlanAnswer(asked.job_id, "created", Status.PENDING, S.PLANNED)]
    row, whole = bench.row(asked.job_id), bench.whole("jobs", asked.job_id)
    assert (row["state"], row["status"], row["run"], row["fence"], row["attempts"]) == ("PLANNED", "pending", 0, 0, 0)
    assert (row["lease_owner"], row["lease_until"], row["published_at"]) == (None, None, None)
    assert row["due_at"] == whole["created_at"] == whole["updated_at"]
    assert abs(row["due_at"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert (row["canonical_url"], row["host"]) == ("https://example.com/x.pdf?b=2&a=1", "example.com")
    assert (row["ext"], row["expected_sha256"], row["expected_media_type"]) == (".pdf", "a" * 64, "application/pdf")
    assert (row["max_bytes"], row["priority"], row["mirrors"]) == (7, -5, ["https://mirror.example/x"])
    assert (whole["idempotency_key"], whole["request_id"]) == (asked.job_key, "r")
    assert bench.view(asked.job_id).scope == Scope("t", "p")


def test_a_job_that_may_not_begin_yet_is_due_then(bench: Bench) -> None:
    moment = datetime(2040, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert bench.row(bench.job(not_before=moment))["due_at"] == moment


def test_texts_are_kept_letter_by_letter(bench: Bench) -> None:
    asked = spec("ü?q=%F0%9D%84%9E", work_id="Gödel 文件 𝄞 '\"\\%_", artifact_id="x" * 512)
    bench.plan(asked)
    row = bench.row(asked.job_id)
    assert (row["work_id"], row["artifact_id"]) == (asked.work_id, asked.artifact_id)
    assert (row["request_url"], row["canonical_url"]) == (asked.url.request, asked.url.canonical)


@pytest.mark.parametrize("state", list(State))
def test_a_job_that_is_there_is_answered_and_not_changed(bench: Bench, state: State) -> None:
    asked = spec("n0")
    assert bench.in_state(state) == asked.job_id
    before = everything(bench.database)
    (answer,) = bench.plan(replace(asked, priority=99, max_bytes=1))
    assert everything(bench.database) == before
    expected = {
        S.DEDUPED: ("skipped", Status.COMPLETED),
        S.SKIPPED_DUPLICATE: ("skipped", Status.SKIPPED),
        S.FAILED: ("failed", Status.FAILED),
        S.CANCELED: ("canceled", Status.CANCELED),
        S.PLANNED: ("known", Status.PENDING),
    }
    assert (answer.outcome, answer.status) == expected.get(state, ("known", Status.PROCESSING))
    assert (answer.job_id, answer.state) == (asked.job_id, state)
    assert bool(answer.hint) is (answer.outcome in ("failed", "canceled"))


def test_a_job_that_waits_for_its_retry_is_on_its_way(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), SOON)
    assert bench.plan(spec("n0")) == [PlanAnswer(job_id, "known", Status.PENDING, S.FAILED)]


def test_a_job_that_failed_for_good_says_how_to_retry(bench: Bench) -> None:
    job_id = bench.job()
    bench.fail(bench.hold("head", job_id), FOR_GOOD)
    (answer,) = bench.plan(spec("n0"))
    assert (answer.job_id, answer.outcome) == (job_id, "failed")
    assert job_id in answer.hint


def test_the_same_request_twice_in_one_call_is_created_once(bench: Bench) -> None:
    answers = bench.plan(spec("a"), spec("b"), spec("a"))
    assert [answer.outcome for answer in answers] == ["created", "created", "known"]
    assert answers[0].job_id == answers[2].job_id
    assert len(everything(bench.database)["jobs"]) == 2


def test_answers_come_in_the_order_of_the_requests_over_many_batches(bench: Bench) -> None:
    specs = [spec(str(n)) for n in range(BATCH + 3)]
    bench.plan(*specs[::2])
    answers = bench.plan(*reversed(specs), specs[1])
    assert [answer.job_id for answer in answers] == [s.job_id for s in reversed(specs)] + [specs[1].job_id]
    created = {answer.job_id for answer in answers if answer.outcome == "created"}
    assert created == {s.job_id for s in specs[1::2]}
    assert answers[-1].outcome == "known"
    assert len(everything(bench.database)["jobs"]) == len(specs)


def test_long_addresses_go_to_the_database_in_documents_of_a_bounded_size(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses a document beyond 256 MiB, which one batch of the longest requests would be."""
    monkeypatch.setattr(planning, "DOCUMENT_BYTES", 1 << 20)
    sizes: list[int] = []

    def seen(_connection: Any, _cursor: Any, _statement: str, given: Any, *_: Any) -> None:
        sizes.extend(len(one) for one in (given.values() if isinstance(given, dict) else given) if isinstance(one, str))

    mirrors = [f"https://mirror.example/{n}/{'x' * 8_000}" for n in range(MAX_MIRRORS)]
    asked = [spec(f"{n}?{'y' * 8_000}", mirrors=mirrors) for n in range(20)]
    sa.event.listen(bench.database.engine, "before_cursor_execute", seen)
    answers = bench.plan(*asked)
    sa.event.remove(bench.database.engine, "before_cursor_execute", seen)
    assert [answer.outcome for answer in answers] == ["created"] * len(asked)
    assert 1 << 19 < max(sizes) <= (1 << 20) + 2
    assert all(bench.row(one.job_id)["mirrors"] == mirrors for one in asked)


def test_what_is_new_begins_at_one_moment_and_what_was_there_stays_as_it_was(bench: Bench) -> None:
    old, *new = (spec(str(n)) for n in range(5))
    bench.plan(old)
    before = everything(bench.database)
    new[0] = replace(new[0], not_before=datetime(2100, 1, 1, tzinfo=UTC))
    assert [one.outcome for one in bench.plan(old, *new)] == ["known", *["created"] * 4]
    after = everything(bench.database)
    assert all(set(before[table]) <= set(after[table]) for table in before)
    query = sa.select(jobs.c.created_at, jobs.c.updated_at).where(jobs.c.job_id.in_([one.job_id for one in new]))
    with bench.database.engine.connect() as connection:
        ((at, updated_at),) = set(connection.execute(query).all())
    assert updated_at == at
    assert [bench.row(one.job_id)["due_at"] for one in new] == [new[0].not_before, at, at, at]


def test_on_postgresql_a_batch_is_one_statement(postgres_url: str) -> None:
    """With each further one the planner waits for the server, and then for its turn in the interpreter."""
    told: list[str] = []
    database = SqlDatabase(postgres_url)
    with database.write() as unit:
        sa.event.listen(database.engine, "before_cursor_execute", lambda *given: told.append(given[2]))
        assert {one.outcome for one in unit.jobs.plan_if_absent([spec(str(n)) for n in range(50)])} == {"created"}
    database.close()
    assert len(told) == 1


def test_nothing_asked_is_nothing_answered(bench: Bench) -> None:
    assert bench.plan() == []


def test_tenants_and_projects_have_jobs_of_their_own(bench: Bench) -> None:
    scopes = [{"tenant_id": "t"}, {"tenant_id": "u"}, {"project_id": "t"}]
    answers = bench.plan(*(spec("a", **scope) for scope in scopes))
    assert [answer.outcome for answer in answers] == ["created"] * 3
    assert len({answer.job_id for answer in answers}) == 3


JOB = {
    "job_id": UNKNOWN, "tenant_id": "t", "project_id": "p", "job_type": "x", "status": "pending",
    "idempotency_key": "k", "created_at": now(), "updated_at": now(),
}  # fmt: skip
DETAIL = {
    "job_id": UNKNOWN, "work_id": "w", "artifact_id": "a", "canonical_url": "u", "request_url": "u", "host": "h",
    "state": "PLANNED",
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param(jobs, {**JOB, "status": "odd"}, id="a check: no such status"),
        pytest.param(jobs, {**JOB, "progress": 101}, id="a check: out of range"),
        pytest.param(jobs, {**JOB, "tenant_id": None}, id="nothing where something must be"),
        pytest.param(artifact_jobs, DETAIL, id="a foreign key: no such job"),
    ],
)
def test_a_broken_rule_is_an_error_and_not_already_there(
    database: SqlDatabase, table: sa.Table, row: dict[str, Any]
) -> None:
    before = everything(database)
    with pytest.raises(IntegrityError), database.engine.begin() as connection:
        connection.execute(insert_ignoring(connection, table).values(**row))
    assert everything(database) == before


@pytest.mark.parametrize("taken", ["job_id", "idempotency_key"])
def test_only_a_taken_key_is_already_there(database: SqlDatabase, taken: str) -> None:
    other = {**JOB, "job_id": UNKNOWN[:-1] + "1", "idempotency_key": "l", taken: JOB[taken]}
    with database.engine.begin() as connection:
        connection.execute(sa.insert(jobs).values(**JOB))
    before = everything(database)
    with database.engine.begin() as connection:
        connection.execute(insert_ignoring(connection, jobs).values(**other))
    assert everything(database) == before


def test_of_a_call_that_fails_nothing_has_happened(bench: Bench) -> None:
    before = everything(bench.database)
    with pytest.raises(IntegrityError):
        bench.plan(spec("good"), replace(spec("bad"), work_id=cast("str", None)))
    assert everything(bench.database) == before


def test_a_text_that_no_column_can_hold_is_an_error_and_never_cut_off(postgres_url: str) -> None:
    database = SqlDatabase(postgres_url)
    with pytest.raises(sa.exc.DataError), database.write() as unit:
        unit.jobs.plan_if_absent([spec("good"), replace(spec("bad"), work_id="x" * 513)])
    assert everything(database)["jobs"] == []
    database.close()


def test_an_id_that_another_key_holds_is_an_error(bench: Bench) -> None:
    asked = spec("a")
    with bench.database.engine.begin() as connection:
        connection.execute(
            sa.insert(jobs).values(
                job_id=asked.job_id, tenant_id="t", project_id="p", job_type="torrent_download", status="pending",
                idempotency_key="another", created_at=now(), updated_at=now(),
            )
        )  # fmt: skip
    before = everything(bench.database)
    with pytest.raises(LedgerUnavailable, match=asked.job_id):
        bench.plan(asked)
    assert everything(bench.database) == before


# ── on PostgreSQL: a job that is purged at this moment ────────────────────────────────────────────


def test_a_job_that_is_purged_while_it_is_planned_goes_on_from_its_fence(own_ledger: Bench) -> None:
    """The planner waits for the purge, and then inserts: by then there is a fence to go on from."""
    bench, database, asked = own_ledger, own_ledger.database, spec("purged")
    job_id = bench.carry(bench.plan(asked)[0].job_id, S.DEDUPED)
    fence = bench.row(job_id)["fence"]
    told: list[PlanAnswer] = []
    thread = threading.Thread(target=lambda: told.extend(bench.plan(asked)))
    with database.write() as unit:
        owned = unit.owned(OWN)
        file = ArchiveFile("a", "0" * 64, 1, 1)
        assert owned.purge(owned.expired(PurgeFilter(0.0), 9), file, retire=False) == [job_id]
        thread.start()
        wait_until(lambda: waits(database) or told != [], "the planner to wait, or to be through")
        assert told == []
    thread.join(30)
    assert [one.outcome for one in told] == ["created"]
    assert bench.row(job_id)["fence"] == fence


@pytest.fixture
def own_ledger(postgres_url: str) -> Iterator[Bench]:
    database = SqlDatabase(postgres_url)
    yield Bench(database)
    database.close()


def waits(database: SqlDatabase) -> bool:
    with database.engine.connect() as connection:
        found = connection.scalar(
            sa.text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
    return bool(found)
