"""A ready statement answers what SQLAlchemy would, on both engines, and fails as it would."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dlpipe.db.clock import after, now
from dlpipe.db.ready import Ready
from dlpipe.db.schema import artifact_jobs, jobs
from tests.ledgers import Bench

_T = artifact_jobs.c
_ITS_JOB = sa.bindparam("its_job", type_=_T.job_id.type)


def both(bench: Bench, statement: Any, **values: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is read of it, ready and by SQLAlchemy, as names and values; nothing stays."""
    with bench.database.engine.connect() as connection, connection.begin() as begun:
        point = connection.begin_nested()
        ready = Ready(statement)(connection, values).rows
        point.rollback()
        plain = connection.execute(statement, values).all()
        begun.rollback()
    return [row._asdict() for row in ready], [row._asdict() for row in plain]


def test_each_type_of_a_column_is_read_as_it_is_otherwise(bench: Bench) -> None:
    job = bench.hold("head", bench.job(mirrors=["http://mirror.example/a"], max_bytes=2**40))
    ready, plain = both(bench, sa.select(artifact_jobs).where(_T.job_id == _ITS_JOB), its_job=job.job_id)
    assert ready == plain
    (row,) = ready
    assert (row["job_id"], row["mirrors"], row["max_bytes"]) == (job.job_id, ["http://mirror.example/a"], 2**40)
    assert row["lease_until"].tzinfo is not None
    assert row["ext"] is None


def test_what_an_update_returns_is_read_by_its_labels(bench: Bench) -> None:
    job_id = bench.job()
    changed = (
        sa.update(artifact_jobs)
        .where(_T.job_id == _ITS_JOB, _T.state == "PLANNED")
        .values(mirrors=sa.bindparam("its_mirrors", type_=_T.mirrors.type), lease_owner="w", lease_until=after(60))
        .returning(_T.mirrors, _T.run, (_T.run + 1).label("next_run"))
    )
    ready, plain = both(bench, changed, its_job=job_id, its_mirrors=["http://b.example/%41"])
    assert ready == plain == [{"mirrors": ["http://b.example/%41"], "run": 0, "next_run": 1}]


def test_nothing_found_is_no_row_and_none_changed(bench: Bench) -> None:
    nobody = str(uuid.uuid4())
    with bench.database.engine.begin() as connection:
        found = Ready(sa.select(_T.state).where(_T.job_id == _ITS_JOB))(connection, {"its_job": nobody})
        changed = Ready(sa.update(jobs).where(jobs.c.job_id == _ITS_JOB).values(updated_at=now()))(
            connection, {"its_job": nobody}
        )
    assert (found.first(), changed.rowcount) == (None, 0)


def test_a_value_that_is_not_given_is_missed_before_anything_is_sent(bench: Bench) -> None:
    with bench.database.engine.begin() as connection, pytest.raises(KeyError, match="its_job"):
        Ready(sa.select(_T.state).where(_T.job_id == _ITS_JOB))(connection, {})


def test_a_statement_that_its_values_spell_is_refused(bench: Bench) -> None:
    some = sa.select(_T.state).where(_T.job_id.in_(sa.bindparam("some", expanding=True)))
    with bench.database.engine.begin() as connection, pytest.raises(ValueError, match="cannot be made ready"):
        Ready(some)(connection, {"some": []})


def test_a_broken_rule_is_the_error_it_is_otherwise_and_shows_no_values(bench: Bench) -> None:
    job_id = bench.job()
    broken = Ready(sa.update(jobs).where(jobs.c.job_id == _ITS_JOB).values(status=sa.bindparam("its_status")))
    with (
        pytest.raises(IntegrityError) as told,
        bench.database.engine.begin() as connection,
    ):
        broken(connection, {"its_job": job_id, "its_status": "secret-word"})
    assert "secret-word" not in str(told.value).partition("DETAIL")[0]


def test_values_that_columns_have_by_themselves_are_written(bench: Bench) -> None:
    made = sa.Table(
        "made", sa.MetaData(), sa.Column("name", sa.String(9), primary_key=True),
        sa.Column("by", sa.String(9), default="first", onupdate="second"),
    )  # fmt: skip
    name = sa.bindparam("its_name", type_=sa.String(9))
    with bench.database.engine.connect() as connection, connection.begin() as begun:
        made.create(connection)
        Ready(sa.insert(made).values(name=name))(connection, {"its_name": "a"})
        assert connection.execute(sa.select(made)).all() == [("a", "first")]
        Ready(sa.update(made).values(name=name))(connection, {"its_name": "b"})
        assert connection.execute(sa.select(made)).all() == [("b", "second")]
        begun.rollback()
