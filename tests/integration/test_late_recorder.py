"""A worker records late, while its successor claims: both lock the rows in one order, so neither is thrown out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dlpipe.core.errors import Retryable
from dlpipe.core.remote import RemoteFacts
from dlpipe.db import SqlDatabase
from dlpipe.db.schema import artifact_jobs, artifact_ops
from dlpipe.pipeline import runner
from dlpipe.pipeline.dispatch import dispatch
from tests.fakes.source import FakeSource
from tests.ledgers import looking
from tests.servers import wait_until
from tests.world import World

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("it is about the row locks of PostgreSQL", "ledger"),
    pytest.mark.no_engines("broker", "store"),
]

URL = "https://files.example/a"
_WAITING = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class Successor:
    """Has locked the job's row, as a claim does first, and goes on to the op once the late recorder waits."""

    def __init__(self, database: SqlDatabase) -> None:
        self.failed: Exception | None = None
        self._database = database
        self._locked = threading.Event()
        self._thread = threading.Thread(target=self._claim)

    def begin(self) -> None:
        self._thread.start()
        assert self._locked.wait(20)

    def end(self) -> None:
        self._thread.join(20)

    def _claim(self) -> None:
        try:
            with self._database.engine.connect() as own:
                own.execute(sa.update(artifact_jobs).values(priority=artifact_jobs.c.priority))
                self._locked.set()
                wait_until(self._recorder_waits, "the recorder waits for the row")
                own.execute(sa.update(artifact_ops).values(result_code=artifact_ops.c.result_code))
                own.commit()
        except Exception as error:
            self.failed = error

    def _recorder_waits(self) -> object:
        with looking(self._database) as connection:  # anew each time: a transaction sees one state of the server
            return connection.scalar(_WAITING)


@pytest.fixture
def database(postgres_url: str) -> Iterator[SqlDatabase]:
    opened = SqlDatabase(postgres_url)
    yield opened
    opened.close()


@pytest.mark.parametrize("outcome", [runner.Done, runner.Failed])
def test_a_late_recorder_and_a_claim_do_not_block_each_other(
    database: SqlDatabase, tmp_path: Path, outcome: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(database, tmp_path / "store")
    world.source.put(URL, b"%PDF-bytes")
    job_id = world.plan(URL)
    dispatch(world.deps)
    successor = Successor(database)
    ask = FakeSource.head

    def head(source: FakeSource, url: str, *, tenant: str) -> RemoteFacts | None:
        successor.begin()
        if outcome is runner.Failed:
            raise Retryable("the server answered 503", code="http_5xx")
        return ask(source, url, tenant=tenant)

    monkeypatch.setattr(FakeSource, "head", head)
    assert isinstance(world.run("head", job_id), outcome)
    successor.end()
    assert successor.failed is None
