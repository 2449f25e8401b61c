"""From events to the page that Prometheus reads, and how often the ledger is asked for it."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlpipe.core import flow
from dlpipe.core.events import (
    Event,
    HintsSent,
    MessageDropped,
    RoundEnded,
    StageFailed,
    StageRecorded,
    StageReplayed,
)
from dlpipe.core.figures import Totals, Waiting
from dlpipe.core.results import DedupeAction, DedupeResult, FinalizeResult, HeadResult, ResumeResult, StreamResult
from dlpipe.telemetry import page, series
from dlpipe.telemetry.board import ENTRIES, Board
from dlpipe.telemetry.page import SHARE, Collector, Happened, Paced, Standing
from dlpipe.telemetry.series import BUCKETS_S
from dlpipe.telemetry.tally import Tally, amounts, bucket

STREAM = StreamResult("f" * 64, 300, resumed_from_bytes=100, bytes_written=200, elapsed_ms=5, fsync_ms=1)
RESUME, KNOWN = ResumeResult("resume", "same"), HeadResult(None, "", known_sha256="f" * 64)
WAITING = Waiting(due=3, due_later=2, oldest_due_s=7.5, in_flight=5, sent=4, held=1)
TOTALS = Totals({("artifact_download", "failed"): 2}, {"http_404": 2}, 4, 4_000, 0)


def samples(*collectors: Collector) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page.text(*collectors)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def after(*events: Event) -> dict[str, dict[tuple[str, ...], float]]:
    tally = Tally(Board(slots=1))
    for event in events:
        tally.tell(event)
    return samples(Happened(tally.read))


@pytest.mark.parametrize(
    ("event", "name", "labels", "value"),
    [
        (StageRecorded("stream", STREAM, 0.2), "dlpipe_stages_recorded_total", ("stream",), 1),
        (StageRecorded("stream", STREAM, 0.2), "dlpipe_received_bytes_total", (), 200),
        (StageRecorded("stream", STREAM, 0.2), "dlpipe_resumed_bytes_total", (), 100),
        (StageRecorded("resume_decide", RESUME, 0), "dlpipe_resume_decisions_total", ("resume",), 1),
        (StageRecorded("dedupe", DedupeResult(DedupeAction.COPY, 0), 0), "dlpipe_dedupe_actions_total", ("copy",), 1),
        (StageRecorded("dedupe", DedupeResult(DedupeAction.HARDLINK, 9), 0), "dlpipe_dedupe_saved_bytes_total", (), 9),
        (StageRecorded("head", KNOWN, 0), "dlpipe_dedupe_actions_total", ("skipped",), 1),
        (StageRecorded("head", HeadResult(200, ""), 0), "dlpipe_dedupe_actions_total", ("skipped",), 0),
        (StageReplayed("index"), "dlpipe_stages_replayed_total", ("index",), 1),
        (StageReplayed("index"), "dlpipe_stages_recorded_total", ("index",), 0),
        (StageFailed("stream", "http_5xx", "retried"), "dlpipe_failures_total", ("http_5xx", "retried"), 1),
        (MessageDropped("head", "lease_busy"), "dlpipe_messages_dropped_total", ("lease_busy",), 1),
        (MessageDropped("head", "lease_busy"), "dlpipe_lease_losses_total", ("head",), 0),
        (MessageDropped("head", "lease_lost"), "dlpipe_lease_losses_total", ("head",), 1),
        (RoundEnded({"files_missing": 2, "dispatched": 0}), "dlpipe_reconcile_findings_total", ("files_missing",), 2),
        (RoundEnded({}), "dlpipe_reconcile_rounds_total", (), 1),
        (HintsSent(7), "dlpipe_hints_sent_total", (), 7),
    ],
)  # fmt: skip
def test_what_an_event_adds(event: Event, name: str, labels: tuple[str, ...], value: float) -> None:
    assert after(event)[name][labels] == value


def test_durations_stand_in_cumulative_buckets_with_their_sum() -> None:
    done = FinalizeResult("f", 1, "p", already_there=False)
    found = after(*(StageRecorded("finalize", done, elapsed_s) for elapsed_s in (0.005, 0.2, 10_000.0)))
    buckets = found["dlpipe_stage_seconds_bucket"]
    assert [buckets[str(bound), "finalize"] for bound in (0.005, 0.1, 0.25, 7200.0)] == [1, 1, 2, 2]
    assert buckets["+Inf", "finalize"] == found["dlpipe_stage_seconds_count"]["finalize",] == 3
    assert found["dlpipe_stage_seconds_sum"]["finalize",] == pytest.approx(10_000.205)


def test_a_bucket_holds_its_own_bound() -> None:
    assert [bucket(bound) for bound in (0.0, *BUCKETS_S, math.inf)] == ["0.005", *map(str, BUCKETS_S), "+Inf"]


def test_every_event_has_its_series_in_the_table() -> None:
    told: list[Event] = [StageRecorded("stream", STREAM, 1), StageReplayed("a"), StageFailed("a", "b", "c"),
            MessageDropped("a", "lease_lost"), RoundEnded({"x": 1}), HintsSent(1)]  # fmt: skip
    named = {name.split("\t")[0] for event in told for name in amounts(event)}
    assert named <= {one.name for one in series.EVENTS}


def test_all_that_can_be_counted_fits_into_a_slot() -> None:
    """With 200 codes that end in three ways, and 100 names of all else."""
    by_stage = sum("stage" in one.labels for one in series.EVENTS) + len(BUCKETS_S) + 2
    assert len(flow.STAGES) * by_stage + 200 * 3 + 100 < ENTRIES


def test_a_board_that_fails_does_not_fail_the_work() -> None:
    class Broken:
        def add(self, amounts: dict[str, float]) -> None:
            raise RuntimeError

        def read(self) -> dict[str, float]:
            return {}

    Tally(Broken()).tell(HintsSent(1))


# ── what stands in the ledger ─────────────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_figures_of_the_ledger_and_the_queues_are_shown_with_their_age() -> None:
    clock = Clock()
    standing = Standing(
        Paced(lambda: WAITING, 10, clock), Paced(lambda: TOTALS, 10, clock), Paced(lambda: {"net": 2}, 10, clock)
    )
    samples(standing)
    clock.now = 4.0
    found = samples(standing)
    assert found["dlpipe_jobs_due"] == {(): 3}
    assert found["dlpipe_jobs_oldest_due_seconds"] == {(): 7.5}
    assert found["dlpipe_jobs"] == {("artifact_download", "failed"): 2}
    assert found["dlpipe_dead_letters"] == {("http_404",): 2}
    assert found["dlpipe_queue_messages"] == {("net",): 2}
    assert found["dlpipe_figures_age_seconds"] == {("open",): 4, ("totals",): 4, ("queues",): 4}
    assert found["dlpipe_figures_ok"] == {("open",): 1, ("totals",): 1, ("queues",): 1}


def test_a_ledger_that_does_not_answer_leaves_the_rest_of_the_page() -> None:
    def away() -> Totals:
        raise RuntimeError

    found = samples(Standing(Paced(lambda: WAITING, 10), Paced(away, 10), None), Happened(Tally(Board(1)).read))
    assert found["dlpipe_figures_ok"] == {("open",): 1, ("totals",): 0}
    assert "dlpipe_jobs" not in found
    assert found["dlpipe_jobs_due"] == {(): 3}
    assert found["dlpipe_stages_recorded_total"]["head",] == 0


def test_the_ledgers_figures_alone_make_a_page() -> None:
    text = page.of_ledger(WAITING, TOTALS)
    assert 'dlpipe_dead_letters{code="http_404"} 2.0' in text
    assert "dlpipe_stages" not in text


def test_figures_are_asked_for_no_more_often_than_set() -> None:
    clock, asked = Clock(), list[float]()
    paced = Paced(lambda: asked.append(clock.now), 10.0, clock)
    for clock.now in (0.0, 5.0, 9.9, 10.0, 19.0, 20.1):
        paced.get()
    assert asked == [0.0, 10.0, 20.1]


def test_figures_that_take_long_take_a_small_share_of_the_time() -> None:
    clock, asked = Clock(), list[float]()

    def slow() -> None:
        asked.append(clock.now)
        clock.now += 3.0

    paced = Paced(slow, 10.0, clock)
    for _ in range(400):
        paced.get()
        clock.now += 1.0
    assert len(asked) * 3.0 <= SHARE * clock.now + 3.0
    assert asked[:2] == [0.0, 63.0]
