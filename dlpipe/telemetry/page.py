"""The page that Prometheus reads, and the small server that shows it."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dlpipe.core.figures import Totals, Waiting
from dlpipe.telemetry import series
from dlpipe.telemetry.series import BUCKETS_S, Kind, Series
from dlpipe.telemetry.tally import SUM

log = logging.getLogger(__name__)

T = TypeVar("T")


class Collector(Protocol):
    """What prometheus-client asks for metrics at each scrape."""

    def collect(self) -> Iterator[Metric]: ...


Values = Mapping[tuple[str, ...], float]
SHARE = 0.05
"""Of the time, how much may be spent on counting what is asked for again and again."""
_AGAIN_S = 5.0
_FORK_WAITS_S = 2.0
_asking = threading.Lock()
_forking: list[bool] = []


def _before_fork() -> None:
    """No child begins its life as a copy of a process in the middle of a database driver's call."""
    _forking.append(_asking.acquire(timeout=_FORK_WAITS_S))


def _after_fork() -> None:
    if _forking.pop():
        _asking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Paced(Generic[T]):
    """An answer that is asked for at most every `every_s`, and never for more than a small share of the time."""

    def __init__(self, ask: Callable[[], T], every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._every_s, self._clock = ask, every_s, clock
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._asked = 0.0
        self._answer: T | None = None

    def get(self) -> tuple[T | None, float]:
        """The newest answer and its age; None when the last attempt failed."""
        with self._lock:
            began = self._clock()
            if began >= self._next:
                try:
                    with _asking:
                        self._answer = self._ask()
                except Exception as error:
                    log.warning("figures are missing: %s", getattr(error, "code", type(error).__name__))
                    self._answer = None
                ended = self._clock()
                self._asked = began
                self._next = ended + max(self._every_s, (ended - began) / SHARE)
            return self._answer, self._clock() - self._asked


# ── what stands on it ─────────────────────────────────────────────────────────────────────────────


class Happened:
    """What the processes of this worker have counted."""

    def __init__(self, read: Callable[[], Mapping[str, Values]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        found = self._read()
        for one in series.EVENTS:
            yield (
                _histogram(one, found.get(one.name, {}))
                if one.kind is Kind.HISTOGRAM
                else _plain(one, {**dict.fromkeys(one.shown, 0.0), **found.get(one.name, {})})
            )


class Standing:
    """What stands in the ledger and waits in the broker, as far as they answer."""

    def __init__(self, waiting: Paced[Waiting], totals: Paced[Totals], queues: Paced[Mapping[str, int]] | None) -> None:
        self._waiting, self._totals, self._queues = waiting, totals, queues

    def collect(self) -> Iterator[Metric]:
        open_work, totals = self._waiting.get(), self._totals.get()
        parts: dict[str, tuple[object, float]] = {"open": open_work, "totals": totals}
        values = {
            **(of_waiting(open_work[0]) if open_work[0] else {}),
            **(of_totals(totals[0]) if totals[0] else {}),
        }
        if self._queues is not None:
            parts["queues"] = queues = self._queues.get()
            values["dlpipe_queue_messages"] = {(name,): float(n) for name, n in (queues[0] or {}).items()}
        values["dlpipe_figures_age_seconds"] = {(part,): age for part, (_, age) in parts.items()}
        values["dlpipe_figures_ok"] = {(part,): float(answer is not None) for part, (answer, _) in parts.items()}
        for name, found in values.items():
            yield _plain(series.ALL[name], found)


def of_waiting(found: Waiting) -> dict[str, Values]:
    return {
        "dlpipe_jobs_due": {(): found.due},
        "dlpipe_jobs_due_later": {(): found.due_later},
        "dlpipe_jobs_oldest_due_seconds": {(): found.oldest_due_s},
        "dlpipe_jobs_in_flight": {(): found.in_flight},
        "dlpipe_jobs_sent": {(): found.sent},
        "dlpipe_jobs_held": {(): found.held},
    }


def of_totals(found: Totals) -> dict[str, Values]:
    return {
        "dlpipe_jobs": {labels: float(n) for labels, n in found.jobs.items()},
        "dlpipe_dead_letters": {(code,): float(n) for code, n in found.dead_letters.items()},
        "dlpipe_artifacts": {(): found.artifacts},
        "dlpipe_artifact_bytes": {(): found.artifact_bytes},
        "dlpipe_artifacts_faulty": {(): found.faulty},
    }


def _plain(one: Series, values: Values) -> Metric:
    make = CounterMetricFamily if one.kind is Kind.COUNTER else GaugeMetricFamily
    family: Metric = make(one.name, one.help, labels=one.labels)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


def _histogram(one: Series, values: Values) -> Metric:
    family = HistogramMetricFamily(one.name, one.help, labels=one.labels)
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    for labels in sorted({*one.shown, *(found[:-1] for found in values)}):
        below, buckets = 0.0, list[tuple[str, float]]()
        for bound in bounds:
            below += values.get((*labels, bound), 0.0)
            buckets.append((bound, below))
        family.add_metric(labels, buckets, values.get((*labels, SUM), 0.0))
    return family


class _Fixed:
    def __init__(self, values: Mapping[str, Values]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, found in self._values.items():
            yield _plain(series.ALL[name], found)


def of_ledger(waiting: Waiting, totals: Totals) -> str:
    """The part of the page that the ledger alone can tell."""
    return text(_Fixed({**of_waiting(waiting), **of_totals(totals)}))


def text(*collectors: Collector) -> str:
    return generate_latest(_registry(collectors)).decode()


def _registry(collectors: Iterable[Collector]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    for one in collectors:
        registry.register(one)
    return registry


# ── serving it ────────────────────────────────────────────────────────────────────────────────────


def serve(address: str, port: int, collectors: Sequence[Collector]) -> threading.Thread:
    """Show the page from threads of this process; an address that is taken is tried again and again."""
    registry = _registry(collectors)

    def keep_trying() -> None:
        said = False
        while True:
            try:
                server, _ = start_http_server(port, addr=address, registry=registry)
            except OSError as error:
                if not said:
                    log.error("metrics cannot be had at %s port %d yet: %s", address, port, error.strerror)
                said = True
                time.sleep(_AGAIN_S)
            else:
                _close_in_children(server)
                log.info("metrics are at http://%s:%d/metrics", address, port)
                return

    thread = threading.Thread(target=keep_trying, name="dlpipe-metrics", daemon=True)
    thread.start()
    return thread


def _close_in_children(server: WSGIServer) -> None:
    """A child that outlives its parent for a moment must not keep the port from the parent's successor."""
    this = weakref.ref(server)

    def after_fork() -> None:
        served = this()
        if served is not None:
            served.socket.close()

    os.register_at_fork(after_in_child=after_fork)
