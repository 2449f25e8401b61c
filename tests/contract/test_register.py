"""All that is written of a new file in one step: as by separate calls, and in their order (INDEX-1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.core.ports import KnownBlob, Registration, Unit
from dlpipe.db import SqlDatabase
from dlpipe.db.schema import metadata
from tests.ledgers import OWN, Bench, everything, looking
from tests.postgres import Postgres
from tests.servers import wait_until

SHA, SHB = "a" * 64, "b" * 64
A, B = f"local:default/default/aa/{SHA}", f"local:default/default/bb/{SHB}"
URL = "https://example.com/a?" + "x" * 8000
BLOB = KnownBlob(SHA, A, 7, '"e"', "Sun, 06 Nov 1994 08:49:37 GMT", "text/plain; charset=ü")
SCOPE = "default"
FACTS: dict[str, Any] = {
    "run": 2, "sha256": SHA, "pointer": A, "shard_prefix": "aa", "byte_size": 7, "resume_decision": "fresh",
    "resume_reason": "new", "bytes_written": 7, "resumed_from_bytes": 0, "elapsed_ms": 3, "fsync_ms": 1,
    "avg_write_mibps": 1.5, "quota_json": {"decision": "admitted", "free_bytes": 2**40, "margin_percent": None},
}  # fmt: skip
TIMES = ("created_at", "seen_at", "mended_at", "retired_at", "found_at")
TABLES = "artifacts job_artifacts hash_index artifact_faults artifact_retirements url_index manifest".split()


def uuid(number: int) -> str:
    return f"00000000-0000-5000-8000-{number:012d}"


def record(job_id: str, number: int = 1, sha256: str = SHA, pointer: str = A) -> ArtifactRecord:
    return ArtifactRecord(uuid(number), OWN, "file", "local", pointer, "text/plain", 7, sha256, 1, job_id)


def at_once(unit: Unit, job_id: str) -> None:
    unit.registry.register(Registration(record(job_id), SCOPE, URL, BLOB, FACTS))


def one_by_one(unit: Unit, job_id: str) -> None:
    unit.registry.add_artifact(record(job_id))
    unit.registry.add_copy(SCOPE, SHA, A, 7, job_id)
    unit.registry.mend(SHA, A)
    unit.registry.see_url(OWN.tenant_id, URL, BLOB)
    unit.registry.note(uuid(1), job_id, FACTS)


def _nothing(unit: Unit, job_id: str, other: str) -> None: ...


def _known(unit: Unit, job_id: str, other: str) -> None:
    unit.registry.add_artifact(record(job_id))


def _all_there(unit: Unit, job_id: str, other: str) -> None:
    one_by_one(unit, job_id)


def _retired(unit: Unit, job_id: str, other: str) -> None:
    unit.registry.add_artifact(record(job_id))
    _sql(unit, f"INSERT INTO artifact_retirements (artifact_uuid, retired_at) SELECT '{uuid(1)}', created_at FROM jobs"
               f" WHERE job_id = '{job_id}'")  # fmt: skip
    _sql(unit, "DELETE FROM job_artifacts")


def _another_is_first(unit: Unit, job_id: str, other: str) -> None:
    unit.registry.add_artifact(record(other, 2, pointer=B))
    unit.registry.add_copy(SCOPE, SHA, B, 7, other)
    unit.registry.note(uuid(2), other, {**FACTS, "pointer": B})


def _url_was_seen(unit: Unit, job_id: str, other: str) -> None:
    unit.registry.see_url(OWN.tenant_id, URL, KnownBlob(SHB, B, 9, '"old"', None, None))


def _has_results(unit: Unit, job_id: str, other: str) -> None:
    for number in (5, 4):
        unit.registry.add_artifact(record(job_id, number, SHB, B))
    unit.registry.add_input(job_id, uuid(5))


def _at_fault(unit: Unit, job_id: str, other: str) -> None:
    """The file of this place, under another job's record and under its own; and another file, which stays at fault."""
    for number, pointer in ((1, A), (2, A), (3, B)):
        unit.registry.add_artifact(record(job_id if number == 1 else other, number, pointer=pointer))
        assert unit.registry.add_fault(uuid(number), Fault.DAMAGED)


def _manifest_of_an_earlier_run(unit: Unit, job_id: str, other: str) -> None:
    unit.registry.note(
        uuid(1), job_id, {"run": 1, "sha256": SHA, "pointer": A, "byte_size": 7, "dedupe_action": "copy"}
    )


BEFORE: list[Callable[[Unit, str, str], None]] = [
    _nothing, _known, _all_there, _retired, _another_is_first, _url_was_seen, _has_results, _at_fault,
    _manifest_of_an_earlier_run,
]  # fmt: skip


def _sql(unit: Unit, text: str) -> None:
    unit._connection.execute(sa.text(text))  # type: ignore[attr-defined]


def rows(connection: sa.Connection) -> dict[str, list[str]]:
    """Of times only whether they are set."""
    found = {}
    for name in TABLES:
        told = [
            {key: (value is not None if key in TIMES else value) for key, value in row.items() if key != "fault_id"}
            for row in connection.execute(sa.select(metadata.tables[name])).mappings()
        ]
        found[name] = sorted(map(repr, told))
    return found


@pytest.mark.parametrize("before", BEFORE, ids=lambda before: before.__name__.strip("_"))
def test_what_is_registered_at_once_leaves_the_rows_of_the_separate_calls(
    bench: Bench, before: Callable[[Unit, str, str], None]
) -> None:
    job_id, other = bench.job(), bench.job()
    with bench.database.write() as unit:
        before(unit, job_id, other)
    with bench.database.write() as unit:
        one_by_one(unit, job_id)
        wanted = rows(unit._connection)
        unit.rollback()
    with bench.database.write() as unit:
        at_once(unit, job_id)
        assert rows(unit._connection) == wanted
    # And twice is once, but for the time at which the URL was seen.
    with bench.database.write() as unit:
        at_once(unit, job_id)
    with looking(bench.database) as connection:
        assert rows(connection) == wanted


def test_nothing_of_it_stays_of_a_transaction_that_fails(bench: Bench) -> None:
    job_id = bench.job()
    before = everything(bench.database)

    def stumble() -> None:
        with bench.database.write() as unit:
            at_once(unit, job_id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()
    assert everything(bench.database) == before


def test_a_file_at_fault_is_known_again_once_it_is_registered_at_once(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        one_by_one(unit, job_id)
        unit.registry.add_fault(uuid(1), Fault.MISSING)
        assert unit.registry.known_url(OWN.tenant_id, URL, None) is None
    with bench.database.write() as unit:
        at_once(unit, job_id)
        assert unit.registry.known_url(OWN.tenant_id, URL, None) == BLOB


# ── on PostgreSQL: the order in which rows are locked ─────────────────────────────────────────────


def test_its_rows_are_locked_in_the_order_of_the_separate_calls(postgres: Postgres, postgres_template: str) -> None:
    """Backfill and torrents write some of them, one after the other: the other way round each could block the other."""
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    job_id, other = bench.job(), bench.job()
    with database.write() as unit:
        _at_fault(unit, job_id, other)
        _url_was_seen(unit, job_id, other)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (at serial, name text)")
        connection.exec_driver_sql(
            "CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO seen (name) VALUES (TG_TABLE_NAME); RETURN NEW; END'"
        )
        for table in TABLES:
            connection.exec_driver_sql(
                f"CREATE TRIGGER noted BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION note_it()"
            )

    def order(write: Callable[[Unit, str], None]) -> list[str]:
        with database.write() as unit:
            write(unit, job_id)
            found = unit._connection.scalars(sa.text("SELECT name FROM seen ORDER BY at")).all()
            unit.rollback()
        return list(dict.fromkeys(found))

    first = order(one_by_one)
    assert len(first) == 6
    assert order(at_once) == first
    database.close()


def test_it_and_a_backfill_of_the_same_url_and_bytes_do_not_block_each_other(
    postgres: Postgres, postgres_template: str
) -> None:
    """Both have the first of their rows, and come to the next one: one waits, and none is ended for the other."""
    database = SqlDatabase(postgres.create_database(postgres_template))
    bench = Bench(database)
    job_id, other = bench.job(), bench.job()
    with database.write() as unit:
        _url_was_seen(unit, other, other)
    told: list[str] = []

    def register() -> None:
        with database.write() as unit:
            at_once(unit, job_id)
        told.append("registered")

    thread = threading.Thread(target=register)
    with database.write() as unit:  # a backfill holds what comes first, and is about to write what comes later
        unit.registry.add_copy(SCOPE, SHA, B, 7, other)
        thread.start()
        wait_until(lambda: _waits(postgres, database) or told != [], "the registration to wait, or to be through")
        unit.registry.see_url(OWN.tenant_id, URL, replace(BLOB, etag=None))
    thread.join(30)
    assert told == ["registered"]
    database.close()


def _waits(postgres: Postgres, database: SqlDatabase) -> bool:
    assert database.url.database is not None
    with postgres.connect(database.url.database) as admin:
        found = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    return bool(found and found[0])


def test_two_that_register_the_same_bytes_at_the_same_time_have_one_first_copy(bench: Bench) -> None:
    """What each of them then reads in its own transaction is the copy that stands, whoever was first."""
    job_ids = [bench.job() for _ in range(4)]
    together, first = threading.Barrier(len(job_ids)), {}

    def register(number: int, job_id: str) -> None:
        together.wait()
        with bench.database.write() as unit:
            pointer = f"local:{number}"
            mine = replace(record(job_id, 10 + number), storage_pointer=pointer)
            blob = replace(BLOB, pointer=pointer)
            unit.registry.register(Registration(mine, SCOPE, f"{URL}{number}", blob, {**FACTS, "pointer": pointer}))
            first[job_id] = unit.registry.first_copy(SCOPE, SHA)

    threads = [threading.Thread(target=register, args=each) for each in enumerate(job_ids)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(first) == len(job_ids)
    assert len(set(first.values())) == 1
