"""An ending with which a new file is registered: all of it if its bytes are the first, else nothing (ADR 43)."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.ports import Ending, Registration
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.clock import now
from dlpipe.db.endings import SqlEndings
from dlpipe.db.schema import artifact_retirements, job_artifacts
from tests.contract.test_endings import alone, claim, ending, now_are, rows
from tests.contract.test_register import BLOB, FACTS, SCOPE, SHA, URL, A, B, record, uuid
from tests.ledgers import Bench, everything
from tests.postgres import Postgres
from tests.servers import wait_until

HAND = ("finalize", ("index", "dedupe"), "")
MEASURED = {**FACTS, "dedupe_action": "download"}


def registering(bench: Bench) -> Ending:
    job, op = claim(bench, "finalize")
    new = Registration(record(job.job_id), SCOPE, URL, BLOB, MEASURED)
    return replace(ending(job, op, HAND), registers=new)


def test_it_leaves_the_rows_of_the_ending_and_of_the_registration(bench: Bench) -> None:
    one = registering(bench)
    assert one.registers is not None
    with bench.database.write() as unit:
        assert unit.endings.end(replace(one, registers=None))
        unit.registry.register(one.registers)
        wanted = rows(unit._connection)
        unit.rollback()
    assert alone(bench.database, one)
    assert now_are(bench) == wanted
    assert bench.row(one.job.job_id)["state"] == State.DEDUPED.value


def test_what_was_given_up_with_a_purge_is_registered_anew(bench: Bench) -> None:
    one = registering(bench)
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(one.job.job_id))
        connection = unit._connection
        connection.execute(sa.delete(job_artifacts))
        connection.execute(sa.insert(artifact_retirements).values(artifact_uuid=uuid(1), retired_at=now()))
    assert alone(bench.database, one)
    with bench.database.read() as unit:
        assert [found.retired_at for found in unit.owned(bench.scope(one.job.job_id)).artifacts_of(one.job.job_id)] == [
            None
        ]


@pytest.mark.parametrize("pointer", [A, B])
def test_bytes_that_somebody_has_already_change_nothing(bench: Bench, pointer: str) -> None:
    one, other = registering(bench), bench.job()
    with bench.database.write() as unit:
        unit.registry.add_copy(SCOPE, SHA, pointer, 7, other)
    before = everything(bench.database)
    assert not alone(bench.database, one)
    assert everything(bench.database) == before
    with bench.database.write() as unit:  # and the claim is still ours, to be ended in another way
        assert unit.endings.end(replace(one, registers=None))


def test_the_same_bytes_in_another_scope_are_no_hindrance(bench: Bench) -> None:
    one, other = registering(bench), bench.job()
    with bench.database.write() as unit:
        unit.registry.add_copy("elsewhere", SHA, B, 7, other)
    assert alone(bench.database, one)


def test_a_claim_that_was_overtaken_registers_nothing(bench: Bench) -> None:
    one = registering(bench)
    bench.set(one.job.job_id, fence=one.job.fence + 1)
    before = everything(bench.database)
    assert not alone(bench.database, one)
    assert everything(bench.database) == before


def test_of_several_that_have_the_same_bytes_at_the_same_moment_one_is_first(bench: Bench) -> None:
    found = [registering(bench) for _ in range(4)]
    together, first = threading.Barrier(len(found)), []

    def end(number: int, one: Ending) -> None:
        assert one.registers is not None
        mine = replace(one.registers, record=replace(one.registers.record, artifact_uuid=uuid(10 + number)))
        together.wait()
        if alone(bench.database, replace(one, registers=mine)):
            first.append(one.job.job_id)

    threads = [threading.Thread(target=end, args=each) for each in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(first) == 1
    states = {one.job.job_id: bench.row(one.job.job_id)["state"] for one in found}
    assert [job_id for job_id, state in states.items() if state == State.DEDUPED.value] == first
    with bench.database.read() as unit:
        copy = unit.registry.first_copy(SCOPE, SHA)
    assert copy is not None
    assert copy.job_id == first[0]


# ── on PostgreSQL: somebody else is about to register them ────────────────────────────────────────


@pytest.mark.parametrize("commits", [True, False], ids=["he does", "he does not"])
def test_it_waits_for_who_registers_them_at_this_moment(
    postgres: Postgres, postgres_template: str, commits: bool
) -> None:
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    one, other = registering(bench), bench.job()
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(alone(database, one)))
    before = everything(database)
    with database.write() as unit:
        unit.registry.add_copy(SCOPE, SHA, B, 7, other)
        thread.start()
        wait_until(lambda: _waits(database) or told != [], "the ending to wait, or to be through")
        assert told == []
        if not commits:
            unit.rollback()
    thread.join(30)
    assert told == [not commits]
    if commits:
        after = everything(database)
        assert {name: found for name, found in after.items() if name != "hash_index"} == {
            name: found for name, found in before.items() if name != "hash_index"
        }
    database.close()


def test_who_was_first_is_seen_also_when_it_is_said_again(
    postgres: Postgres, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was restarted, and somebody else registers the same bytes at this very moment."""
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    one, other = registering(bench), bench.job()
    real, times, told = SqlEndings._is_written, count(), list[bool | BaseException]()

    def written(this: SqlEndings, ending: Ending) -> bool:
        if not next(times):
            driver: Any = this._connection.connection.driver_connection
            with postgres.connect(str(database.url.database)) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", (driver.info.backend_pid,))
        return real(this, ending)

    def end() -> None:
        try:
            told.append(alone(database, one))
        except BaseException as error:
            told.append(error)

    monkeypatch.setattr(SqlEndings, "_is_written", written)
    thread = threading.Thread(target=end)
    with database.write() as unit:
        unit.registry.add_copy(SCOPE, SHA, B, 7, other)
        thread.start()
        wait_until(lambda: _waits(database) or told != [], "the ending to wait, or to be through")
        assert told == []
    thread.join(30)
    assert told == [False]
    assert next(times) == 2
    database.close()


def _waits(database: SqlDatabase) -> bool:
    with database.engine.connect() as connection:
        found = connection.scalar(
            sa.text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
    return bool(found)
