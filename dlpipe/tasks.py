"""The Celery tasks. A task reads its message, calls one function of the pipeline, and says how it went."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task, signals
from celery.exceptions import Reject
from celery.result import EagerResult

from dlpipe import hand, presence, wiring
from dlpipe.celery import CeleryPublisher, app
from dlpipe.core.downloads import StartAnswer
from dlpipe.core.errors import BrokerUnavailable, DlpipeError, LeaseUnavailable, NotBegun
from dlpipe.core.escape import escape
from dlpipe.core.flow import STAGES, Queue
from dlpipe.core.model import Scope
from dlpipe.pipeline import dispatch as dispatching
from dlpipe.pipeline import nodes, planner, runner, torrent_files, torrent_sync, torrents
from dlpipe.pipeline import reconcile as healing
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import PlanSummary
from dlpipe.pipeline.top import Watcher
from dlpipe.pipeline.torrents import TorrentDeps

__all__ = ["deps", "plan", "plan_many", "start_download", "torrent_deps"]

if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # generic for the type checker only


def deps() -> Deps:
    return wiring.deps(lambda: CeleryPublisher(app))


# ── planning ──────────────────────────────────────────────────────────────────────────────────────


class PlanTask(_Task):
    """`plan.delay(…)` writes the job into the ledger before it returns; only the hint goes through the broker.

    A process without access to the ledger sends the task by its name instead (docs/operations.md).
    """

    Request = "dlpipe.request:PlanRequest"

    def apply_async(
        self, args: Any = None, kwargs: Mapping[str, Any] | None = None, *_: Any, **__: Any
    ) -> EagerResult[Any]:
        answer = self.run(*(args or ()), **(kwargs or {}))
        return EagerResult(answer["job_id"], answer, "SUCCESS", name=self.name)


@app.task(name="dlpipe.plan", base=PlanTask)
def plan(url: str, **fields: Any) -> dict[str, Any]:
    """Plan one file; answers the job's id and where it stands. See `dlpipe plan --help` for the fields."""
    return asdict(planner.plan(deps(), {"url": url, **fields}))


def plan_many(requests: Iterable[Mapping[str, Any]]) -> PlanSummary:
    """Plan any number of files (dicts with the fields of `plan`) in bounded memory."""
    return planner.plan_many(deps(), requests)


# ── the stages ────────────────────────────────────────────────────────────────────────────────────


def _stage(task: Any, name: str, job_id: str, run: int) -> str:
    steps = task.request.chain
    outcome = runner.run(deps(), name, job_id, run, hand.further(app, steps, job_id, run))
    if isinstance(outcome, runner.Dropped) and outcome.reason == NotBegun.code:
        raise Reject(outcome.reason, requeue=True)
    also = () if isinstance(outcome, runner.Dropped) else outcome.stages[1:]
    if not outcome.goes_on:
        task.request.chain = None  # the rest of the chain has nothing to do
    elif steps:
        task.request.chain = steps[: len(steps) - len(also)]
        if isinstance(outcome, runner.Done) and wiring.settings().own_node:
            CeleryPublisher(app).steer(steps, outcome.node)
    hand.tell(task, also, (job_id, run))
    return str(outcome)


@app.task(name="dlpipe.head", bind=True)
def head(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "head", job_id, run)


@app.task(name="dlpipe.resume_decide", bind=True)
def resume_decide(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "resume_decide", job_id, run)


@app.task(name="dlpipe.stream", bind=True)
def stream(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "stream", job_id, run)


@app.task(name="dlpipe.finalize", bind=True)
def finalize(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "finalize", job_id, run)


@app.task(name="dlpipe.index", bind=True)
def index(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "index", job_id, run)


@app.task(name="dlpipe.dedupe", bind=True)
def dedupe(self: Any, job_id: str, run: int) -> str:
    return _stage(self, "dedupe", job_id, run)


# ── torrents ──────────────────────────────────────────────────────────────────────────────────────


class _Messages:
    """The port `Messages` of the pipeline's torrents."""

    def enqueue(self, job_ids: Sequence[str]) -> None:
        CeleryPublisher(app).send(enqueue_download.name, job_ids)

    def register(self, job_ids: Sequence[str]) -> None:
        CeleryPublisher(app).send(register_download.name, job_ids)


def watcher(scope: Scope) -> Watcher:
    return wiring.watcher(lambda: CeleryPublisher(app), scope)


def torrent_deps() -> TorrentDeps:
    return wiring.torrents(lambda: CeleryPublisher(app), _Messages())


def start_download(**fields: Any) -> StartAnswer:
    """Ask for a torrent (user_id, book_id, media_type, source); answers the active job if there is one."""
    return torrents.start_download(torrent_deps(), fields)


@app.task(name="dlpipe.enqueue_download")
def enqueue_download(job_id: str) -> str:
    return torrents.enqueue(torrent_deps(), job_id)


@app.task(name="dlpipe.register_download")
def register_download(job_id: str) -> str:
    return torrent_files.register(torrent_deps(), job_id)


# ── periodic ──────────────────────────────────────────────────────────────────────────────────────


@app.task(name="dlpipe.dispatch")
def dispatch() -> str:
    with wiring.single_flight("dispatch", ttl_s=30) as ours:
        return str(dispatching.dispatch(deps())) if ours else "another one is at it"


@app.task(name="dlpipe.reconcile")
def reconcile() -> str:
    with wiring.single_flight("reconcile", ttl_s=2 * wiring.settings().heal.deadline_s) as ours:
        return str(_everywhere(remembered(healing.reconcile(deps())))) if ours else "another one is at it"


def _everywhere(report: healing.Report) -> healing.Report:
    """Ask the other nodes, if they have staging folders of their own, to look after them."""
    with suppress(BrokerUnavailable):
        CeleryPublisher(app).ask_nodes(sweep.name, nodes.sweepers(deps()))
    return report


@app.task(name="dlpipe.sweep")
def sweep() -> str:
    with wiring.single_flight(f"sweep.{wiring.settings().node}", ttl_s=2 * wiring.settings().heal.deadline_s) as ours:
        return str(healing.sweep(deps())) if ours else "another one is at it"


def remembered(report: healing.Report) -> healing.Report:
    """A round that was carried out, so that `dlpipe top` can tell what it found."""
    with suppress(LeaseUnavailable):
        wiring.watch().put_round(report.counts())
    return report


@app.task(name="dlpipe.sync_torrents")
def sync_torrents() -> str:
    with wiring.single_flight("sync_torrents", ttl_s=120) as ours:
        return str(torrent_sync.sync(torrent_deps())) if ours else "another one is at it"


# ── the life of a worker ──────────────────────────────────────────────────────────────────────────


@signals.worker_init.connect(weak=False)
@signals.beat_init.connect(weak=False)
def _before_work(**_: Any) -> None:
    try:
        wiring.prepare()
    except DlpipeError as error:
        _refuse(error)


def _refuse(error: DlpipeError) -> NoReturn:
    # Celery would swallow it, and a worker that can do nothing would take messages all the same.
    sys.stderr.write(f"error: {escape(str(error))}\n  {escape(error.hint)}\n")
    raise SystemExit(2) from error


@signals.worker_init.connect(weak=False)
def _at_its_node(**_: Any) -> None:
    own = wiring.settings().own_node
    if own and presence.take_own(app, own):
        try:
            wiring.sign_of_life(())  # no sign of life yet, but whose name it is
        except DlpipeError as error:
            _refuse(error)
        presence.install(app, own, wiring.settings().nodes.beat_s, wiring.sign_of_life)


@signals.worker_init.connect(weak=False)
def _before_children(**_: Any) -> None:
    wiring.count_here()
    wiring.hear_the_end()


@signals.worker_process_init.connect(weak=False)
def _in_child(**_: Any) -> None:
    wiring.die_with_parent()
    wiring.hear_the_end()


@signals.worker_ready.connect(weak=False)
def _at_start(**_: Any) -> None:
    reconcile.apply_async(queue=Queue.BEAT.value)
    wiring.show_metrics(CeleryPublisher(app).depths)


@signals.after_setup_logger.connect(weak=False)
@signals.after_setup_task_logger.connect(weak=False)
def _dress_lines(logger: logging.Logger, **_: Any) -> None:
    wiring.dress_lines(logger, [f"dlpipe.{row.name}" for row in STAGES])


@signals.worker_shutting_down.connect(weak=False)
def _at_end(**_: Any) -> None:
    wiring.end_in_grace()
