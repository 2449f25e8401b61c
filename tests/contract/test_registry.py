"""Artifacts and the indexes that find bytes again, on both engines (JOB-3, INDEX-1, DEDUPE-2)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import FirstCopy, KnownBlob
from dlpipe.core.states import State
from dlpipe.db.clock import after
from dlpipe.db.registry import SqlRegistry
from dlpipe.db.schema import job_artifacts, url_index
from tests.ledgers import FOREIGN, OWN, UNKNOWN, Bench, everything, spec

SHA, SHB = "a" * 64, "b" * 64
A, B = f"local:default/default/aa/{SHA}", f"local:default/default/bb/{SHB}"
URL = "https://example.com/a?" + "x" * 8000
BLOB = KnownBlob(SHA, A, 7, '"e"', "Sun, 06 Nov 1994 08:49:37 GMT", "text/plain; charset=ü")


def uuid(number: int) -> str:
    return f"00000000-0000-5000-8000-{number:012d}"


def record(job_id: str, number: int = 1, sha256: str = SHA) -> ArtifactRecord:
    return ArtifactRecord(uuid(number), OWN, "file", "local", A, "text/plain", 7, sha256, 1, job_id)


def artifacts(bench: Bench, job_id: str, scope: Scope = OWN) -> list[ArtifactRecord]:
    with bench.database.read() as unit:
        return unit.owned(scope).artifacts_of(job_id)


def test_a_registered_artifact_is_read_as_it_was_written_and_belongs_to_its_job(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id))
    (found,) = artifacts(bench, job_id)
    assert replace(found, created_at=None) == record(job_id)
    assert found.created_at is not None
    assert abs(found.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert bench.view(job_id).artifacts == (uuid(1),)


@pytest.mark.parametrize("again", [record(UNKNOWN), record(UNKNOWN, sha256=SHB)], ids=["the same", "a changed one"])
def test_a_registered_artifact_never_changes(bench: Bench, again: ArtifactRecord) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id))
    before = everything(bench.database)
    with bench.database.write() as unit:
        unit.registry.add_artifact(replace(again, created_by_job_id=job_id))
    assert everything(bench.database) == before


def test_no_statement_changes_an_artifact() -> None:
    """JOB-3: the port offers no way, and neither does what stands behind it."""
    assert not [name for name in vars(SqlRegistry) if "update" in name or "delete" in name or "set_" in name]


def test_the_results_of_a_job_keep_the_order_in_which_they_came(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        for number in (3, 1, 2):
            unit.registry.add_artifact(record(job_id, number))
    assert [found.artifact_uuid for found in artifacts(bench, job_id)] == [uuid(3), uuid(1), uuid(2)]
    assert bench.view(job_id).artifacts == (uuid(3), uuid(1), uuid(2))


def test_a_result_is_linked_also_after_an_earlier_link_is_gone(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        for number in (1, 2):
            unit.registry.add_artifact(record(job_id, number))
    with bench.database.engine.begin() as connection:
        connection.execute(sa.delete(job_artifacts).where(job_artifacts.c.artifact_uuid == uuid(1)))
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id, 3))
    assert bench.view(job_id).artifacts == (uuid(2), uuid(3))


def test_a_result_of_no_job_is_an_error_and_leaves_nothing(bench: Bench) -> None:
    before = everything(bench.database)
    with pytest.raises(IntegrityError), bench.database.write() as unit:
        unit.registry.add_artifact(record(UNKNOWN))
    assert everything(bench.database) == before


def test_a_negative_size_is_refused(bench: Bench) -> None:
    job_id = bench.job()
    with pytest.raises(IntegrityError), bench.database.write() as unit:
        unit.registry.add_artifact(replace(record(job_id), byte_size=-1))
    assert artifacts(bench, job_id) == []


def test_planning_a_finished_job_again_answers_its_artifacts(bench: Bench) -> None:
    job_id = bench.in_state(State.DEDUPED)
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id, 2))
        unit.registry.add_artifact(record(job_id, 1))
    (answer,) = bench.plan(spec("n0"))
    assert (answer.outcome, answer.artifacts) == ("skipped", (uuid(2), uuid(1)))


def test_artifacts_of_another_scope_are_not_there(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id))
    for scope in FOREIGN:
        assert artifacts(bench, job_id, scope) == artifacts(bench, UNKNOWN, scope) == []


def test_the_first_copy_stays_the_first(bench: Bench) -> None:
    with bench.database.write() as unit:
        assert unit.registry.first_copy("t", SHA) is None
        unit.registry.add_copy("t", SHA, A, 7, uuid(1))
        unit.registry.add_copy("t", SHA, B, 7, uuid(2))
        assert unit.registry.first_copy("t", SHA) == FirstCopy(A, uuid(1))


def test_dedupe_scopes_do_not_see_each_other(bench: Bench) -> None:
    with bench.database.write() as unit:
        unit.registry.add_copy("t", SHA, A, 7, uuid(1))
        assert unit.registry.first_copy("u", SHA) is None
        assert unit.registry.first_copy("t", SHB) is None
        unit.registry.add_copy("u", SHA, B, 7, uuid(2))
        assert unit.registry.first_copy("t", SHA) == FirstCopy(A, uuid(1))


def test_a_first_copy_gives_way_only_as_long_as_it_is_the_one_that_was_seen(bench: Bench) -> None:
    with bench.database.write() as unit:
        unit.registry.add_copy("t", SHA, A, 7, uuid(1))
        unit.registry.repoint("t", SHA, B, "local:c", uuid(3))  # somebody was faster
        unit.registry.repoint("u", SHA, A, "local:c", uuid(3))
        unit.registry.repoint("t", SHB, A, "local:c", uuid(3))
        assert unit.registry.first_copy("t", SHA) == FirstCopy(A, uuid(1))
        unit.registry.repoint("t", SHA, A, B, uuid(2))
        assert unit.registry.first_copy("t", SHA) == FirstCopy(B, uuid(2))


def test_a_url_that_was_seen_is_known_in_its_tenant(bench: Bench) -> None:
    with bench.database.write() as unit:
        assert unit.registry.known_url("t", URL, 60.0) is None
        unit.registry.see_url("t", URL, BLOB)
        assert unit.registry.known_url("t", URL, 60.0) == BLOB
        assert unit.registry.known_url("u", URL, 60.0) is None
        assert unit.registry.known_url("t", URL + "y", 60.0) is None


def test_what_was_seen_last_counts(bench: Bench) -> None:
    later = KnownBlob(SHB, B, 8)
    with bench.database.write() as unit:
        unit.registry.see_url("t", URL, BLOB)
        unit.registry.see_url("u", URL, BLOB)
        unit.registry.see_url("t", URL, later)
        assert unit.registry.known_url("t", URL, 60.0) == later  # also that it has no validators any more
        assert unit.registry.known_url("u", URL, 60.0) == BLOB


def test_a_url_is_trusted_for_a_time_only(bench: Bench) -> None:
    with bench.database.write() as unit:
        unit.registry.see_url("t", URL, BLOB)
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-100.0)))
    with bench.database.write() as unit:
        assert unit.registry.known_url("t", URL, 110.0) == BLOB
        assert unit.registry.known_url("t", URL, 90.0) is None
        assert unit.registry.known_url("t", URL, 0.0) is None
        unit.registry.see_url("t", URL, BLOB)
        assert unit.registry.known_url("t", URL, 90.0) == BLOB


def test_a_url_can_be_asked_for_however_old_it_is(bench: Bench) -> None:
    with bench.database.write() as unit:
        assert unit.registry.known_url("t", URL, None) is None
        unit.registry.see_url("t", URL, BLOB)
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-1e8)))
    with bench.database.read() as unit:
        assert unit.registry.known_url("t", URL, None) == BLOB
        assert unit.registry.known_url("u", URL, None) is None


def test_a_url_is_seen_again_only_with_the_bytes_that_it_is_known_for(bench: Bench) -> None:
    with bench.database.write() as unit:
        unit.registry.see_url("t", URL, BLOB)
        unit.registry.see_url("u", URL, BLOB)
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(seen_at=after(-100.0)))
    with bench.database.write() as unit:
        unit.registry.see_again("t", URL, SHB)
        unit.registry.see_again("t", URL + "y", SHA)
        assert unit.registry.known_url("t", URL, 90.0) is None
        unit.registry.see_again("t", URL, SHA)
        assert unit.registry.known_url("t", URL, 90.0) == BLOB
        assert unit.registry.known_url("u", URL, 90.0) is None


def test_a_digest_alone_does_not_make_a_url_known(bench: Bench) -> None:
    with bench.database.write() as unit:
        unit.registry.see_url("t", URL, BLOB)
    with bench.database.engine.begin() as connection:
        connection.execute(sa.update(url_index).values(canonical_url="https://example.com/other"))
    with bench.database.read() as unit:
        assert unit.registry.known_url("t", URL, 60.0) is None


FACTS = {"run": 1, "sha256": SHA, "pointer": A, "byte_size": 7}


def test_measures_are_added_to_what_was_noted_before(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        unit.registry.add_artifact(record(job_id))
        unit.registry.note(uuid(1), job_id, {**FACTS, "elapsed_ms": 2**40, "avg_write_mibps": 1.5})
        unit.registry.note(uuid(1), job_id, {"dedupe_action": "hardlink", "quota_json": {"free": 7, "ü": None}})
        found = unit.owned(OWN).measures_of(job_id)
    assert found is not None
    assert (found["run"], found["sha256"], found["byte_size"]) == (1, SHA, 7)
    assert (found["elapsed_ms"], found["avg_write_mibps"], found["bytes_written"]) == (2**40, 1.5, None)
    assert (found["dedupe_action"], found["quota_json"]) == ("hardlink", {"free": 7, "ü": None})
    assert len(everything(bench.database)["manifest"]) == 1


def test_the_measures_of_a_job_are_those_of_its_newest_result(bench: Bench) -> None:
    job_id = bench.job()
    with bench.database.write() as unit:
        for number in (1, 2):
            unit.registry.add_artifact(record(job_id, number))
            unit.registry.note(uuid(number), job_id, {**FACTS, "run": number})
    with bench.database.read() as unit:
        found = unit.owned(OWN).measures_of(job_id)
        assert unit.owned(OWN).measures_of(bench.job()) is None
    assert found is not None
    assert found["artifact_uuid"] == uuid(2)


def test_half_a_manifest_row_is_refused(bench: Bench) -> None:
    job_id = bench.job()
    with pytest.raises(IntegrityError), bench.database.write() as unit:
        unit.registry.note(uuid(1), job_id, {"dedupe_action": "hardlink"})
    assert everything(bench.database)["manifest"] == []
