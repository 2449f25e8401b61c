"""What is told is what the ledger took: once, after the commit, and never for a replay (OPS-7)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dlpipe.core import about
from dlpipe.core.errors import LedgerUnavailable, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.events import Event, HintsSent, MessageDropped, RoundEnded, StageFailed, StageRecorded, StageReplayed
from dlpipe.core.ports import Endings, Glance, Held, Unit
from dlpipe.pipeline import stores
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.round import Round
from dlpipe.pipeline.runner import Dropped
from tests.world import World

URL = "http://files.example/a.bin"
BODY = b"0123456789abcdef" * 20_000
STAGES = ["head", "resume_decide", "stream", "finalize", "index", "dedupe"]


class Told(list[Event]):
    """The port `Telemetry`, which also remembers what the lines of the moment are about."""

    def tell(self, event: Event) -> None:
        self.append(event)


@pytest.fixture
def told(world: World) -> Told:
    told = Told()
    world.deps = replace(world.deps, telemetry=told)
    return told


@pytest.fixture
def job(world: World) -> str:
    world.source.put(URL, BODY)
    return world.plan(URL, tenant_id="acme", request_id="req-1")


def test_each_stage_is_told_once_with_its_result(world: World, told: Told, job: str) -> None:
    world.drive()
    recorded = [event for event in told if isinstance(event, StageRecorded)]
    assert [event.stage for event in recorded] == STAGES
    assert [type(event.result).__name__ for event in recorded][2] == "StreamResult"
    assert [event for event in told if not isinstance(event, StageRecorded)] == [HintsSent(1)]


def test_a_message_that_comes_again_is_a_replay(world: World, told: Told, job: str) -> None:
    world.drive()
    told.clear()
    world.run("stream", job)
    assert told == [StageReplayed("stream")]


def test_an_op_that_an_earlier_run_finished_is_a_replay(world: World, told: Told, job: str) -> None:
    """The row of FINALIZE, INDEX and DEDUPE is there already: nothing is recorded a second time."""
    world.drive()
    blob = next(path for path in (world.root / "acme").rglob("*") if path.is_file())
    blob.chmod(0o600)
    blob.unlink()
    world.policy(heal=replace(world.deps.policy.heal, items=100))
    reconcile(world.deps)
    told.clear()
    world.drive()
    assert [
        (type(event).__name__, event.stage) for event in told if isinstance(event, StageRecorded | StageReplayed)
    ] == [
        ("StageRecorded", "head"), ("StageRecorded", "resume_decide"), ("StageRecorded", "stream"),
        ("StageReplayed", "finalize"), ("StageReplayed", "index"), ("StageReplayed", "dedupe"),
    ]  # fmt: skip


class Forgetful:
    """A database that takes nothing from the n-th write on: it does not answer the commit."""

    def __init__(self, world: World, broken: int) -> None:
        self._inner, self._left = world.database, broken

    @contextmanager
    def write(self) -> Iterator[Unit]:
        self._left -= 1
        with self._inner.write() as unit:
            yield unit
            if self._left <= 0:
                unit.rollback()
                raise LedgerUnavailable("the test has switched it off")

    @contextmanager
    def single(self) -> Iterator[Endings]:
        with self.write() as unit:
            yield unit.endings

    @contextmanager
    def read(self) -> Iterator[Unit]:
        with self._inner.read() as unit:
            yield unit

    @contextmanager
    def glance(self) -> Iterator[Glance]:
        with self.read() as unit:
            yield unit


def test_what_is_not_committed_is_not_told(world: World, told: Told, job: str) -> None:
    world.deps = replace(world.deps, database=Forgetful(world, 2))
    assert world.run("head", job) == Dropped("ledger_unavailable")
    assert told == [MessageDropped("head", "ledger_unavailable")]


@pytest.mark.parametrize(
    ("failure", "then"),
    [
        (Permanent("no", code="http_404"), "for_good"),
        (Retryable("later", code="http_5xx"), "retried"),
        (Postponed("not now", code="host_busy", after_s=5), "postponed"),
    ],
)
def test_a_failure_is_told_with_what_follows(
    world: World, told: Told, job: str, failure: StageFailure, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(world.source, "head", fail)
    world.run("head", job)
    assert told == [StageFailed("head", failure.code, then)]


def test_a_failure_that_could_not_be_written_is_not_told(
    world: World, told: Told, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Permanent("no", code="http_404")

    monkeypatch.setattr(world.source, "head", fail)
    world.deps = replace(world.deps, database=Forgetful(world, 2))
    world.run("head", job)
    assert told == [MessageDropped("head", "ledger_unavailable")]


def test_a_lost_lease_is_told(world: World, told: Told, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = world.source.head

    def head(url: str, *, tenant: str) -> object:
        world.expire(job)
        (held,) = _expired(world)
        with world.database.write() as unit:
            assert unit.backlog.orphan(held, None)
        return real(url, tenant=tenant)

    monkeypatch.setattr(world.source, "head", head)
    assert world.run("head", job) == Dropped("lease_lost")
    assert told == [MessageDropped("head", "lease_lost")]


def test_lines_of_a_stage_are_about_its_job_and_request(
    world: World, told: Told, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    class Look(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((dict(about.current()), record.getMessage(), getattr(record, "fields", {})))

    stores.recognise(world.deps)
    log, look = logging.getLogger("dlpipe.pipeline"), Look()
    log.addHandler(look)
    try:
        with caplog.at_level(logging.INFO, "dlpipe.pipeline"):
            world.run("head", job)
            world.run("head", job)
            world.run("stream", job)
    finally:
        log.removeHandler(look)
    ids = {"job_id": job, "run": 1}
    owner = {"tenant": "acme", "request_id": "req-1"}
    assert [(fields, message) for fields, message, _ in seen] == [
        ({"stage": "head", **ids, **owner}, "done: HEAD_DONE"),
        ({"stage": "head", **ids}, "replayed: HEAD_DONE"),
        ({"stage": "stream", **ids}, "dropped: out_of_order"),
    ]
    assert set(seen[0][2]) == {"elapsed_ms", "bytes"}
    assert about.current() == {}


# ── reconcile ─────────────────────────────────────────────────────────────────────────────────────


def test_a_round_is_told_with_what_it_found(world: World, told: Told, job: str) -> None:
    world.leave_claimed("head", job)
    world.expire(job)
    reconcile(world.deps)
    (round_,) = [event for event in told if isinstance(event, RoundEnded)]
    assert {kind: n for kind, n in round_.counts.items() if n} == {
        "orphans_requeued": 1, "ops_abandoned": 1, "dispatched": 1,
    }  # fmt: skip


def test_a_dry_round_is_not_told(world: World, told: Told, job: str) -> None:
    reconcile(world.deps, dry_run=True)
    assert told == []


def test_what_a_broken_transaction_counted_does_not_count(world: World) -> None:
    this = Round(world.deps)
    this.count("dispatched", 2)
    with pytest.raises(LedgerUnavailable):
        _find_and_break(this)
    assert (this.report().orphans_requeued, this.report().dispatched) == (0, 2)


def _find_and_break(this: Round) -> None:
    with this.unit():
        this.found("orphans_requeued", "j", "due again")
        raise LedgerUnavailable("gone")


def _expired(world: World) -> list[Held]:
    with world.database.read() as unit:
        return list(unit.backlog.expired(10))
