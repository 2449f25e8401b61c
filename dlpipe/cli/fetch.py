"""`dlpipe fetch`: the whole job on this machine, in one command."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output, records
from dlpipe.cli.ended import Ended
from dlpipe.cli.inputs import Entry, Inputs, inputs
from dlpipe.cli.placing import place_in, prepare
from dlpipe.core.errors import StageFailure
from dlpipe.core.urls import redact

if TYPE_CHECKING:
    from dlpipe.embedded.nursery import Nursery

POLL_S = 0.1
FIRST_POLL_S = 0.01
LOOK_UP = 400
STOP_GRACE_S = 8.0
NO_WORKER_S = 15.0


@click.command(
    epilog="""\b
Examples:
  dlpipe fetch https://example.org/a.pdf https://example.org/b.zip
  dlpipe fetch -i urls.txt --out ./papers
  dlpipe fetch -i list.csv --map url=link --map work_id=doi --ignore-unknown --rejects bad.csv
  dlpipe fetch https://example.org/a.pdf --sha256 9f86d0…  --media-type application/pdf
  cat works.jsonl | dlpipe fetch -i - --json > results.jsonl

\b
Files live in DLPIPE_HOME (./dlpipe-data unless set). What is there already is not fetched again, unless --refresh
asks whether the server has something newer; an interrupted fetch goes on from the bytes that are there, and a file
that was removed from the store is fetched again.
Files under --out may be hardlinks of the store's and are read-only: copy one before you change it.
Servers on this machine or in private networks are refused unless DLPIPE_ALLOW_PRIVATE=1.
Exit status: 0 all completed or skipped, 1 some failed or were refused, 2 wrong use, or refused as a whole (nothing
was planned), 130 interrupted.
"""
)
@inputs
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also put the files there, under readable names (read-only, hardlinked where possible).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting after so long, with exit status 1; the jobs go on when a stack runs again.",
)
@click.option("--retry", is_flag=True, help="Try files again that failed for good before.")
@click.option("--refresh", is_flag=True, help="Ask the server again for files that are done, or failed for good.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per job when it ends.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, only errors and results.")
def fetch(
    wanted: Inputs, out: Path | None, timeout: float | None, retry: bool, refresh: bool, as_json: bool, quiet: bool
) -> int:  # fmt: skip
    """Fetch files now, on this machine, and wait for them.

    Starts what it needs (a private Redis, workers, a scheduler) and ends it again; nothing to install.
    """
    wanted.given |= {"refresh": True} if refresh else {}
    wanted.check()
    if out is not None:
        prepare(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = _Fetch(out, timeout, retry, quiet, Ended(as_json=as_json))
    return job.run(wanted)


def _paused(job_id: str) -> dict[str, str]:
    return {"error_code": "job_paused", "error_message_safe": f"it is paused. To let it go on: dlpipe resume {job_id}"}


def _nursery() -> Nursery | None:
    """What forks our workers, so that they need not import all of it again; not where others run the stack.

    Made before anything that is ours alone: settings, threads, connections.
    """
    from dlpipe.embedded.ask import data_folder
    from dlpipe.embedded.nursery import Nursery
    from dlpipe.embedded.stack import is_run

    try:
        if is_run(Path(data_folder())):
            return None
    except (OSError, ValueError, RuntimeError):
        return None
    from dlpipe.cli.ready import load

    load(commands=False)
    return Nursery.plant(("celery.bin.celery", "celery.apps.worker", "celery.concurrency.thread"))


def _pause_s(waited_s: float, look_s: float) -> float:
    """A small file is noticed at once, and a large one asked for seldom; looking takes a third of the time at most."""
    return max(min(POLL_S, max(FIRST_POLL_S, waited_s / 10)), 2 * look_s)


@dataclass(frozen=True, slots=True)
class _Asked:
    url: str
    scope: Any
    sha256: str | None


@dataclass
class _Fetch:
    out: Path | None
    timeout: float | None
    retry: bool
    quiet: bool
    ended: Ended
    unplaced: bool = False
    waiting: dict[str, Counter[_Asked]] = field(default_factory=dict)
    """By job, each way in which it was asked for, and how often."""

    def run(self, wanted: Inputs) -> int:
        nursery = _nursery()
        from dlpipe import wiring
        from dlpipe.pipeline.reconcile import reconcile
        from dlpipe.tasks import deps

        try:
            self.deps = deps()
            self._plan(wanted)
            if self.waiting:
                if nursery is not None:
                    nursery.soon()
                self._wait(wiring.stack(lambda _pid: reconcile(self.deps), few_first=True, nursery=nursery))
        finally:
            if nursery is not None:
                nursery.end()
        return self._finish()

    # ── planning ──────────────────────────────────────────────────────────────────────────────────

    def _plan(self, wanted: Inputs) -> None:
        from dlpipe.cli.planning import Planning
        from dlpipe.pipeline.planner import Refusal

        def refused(entry: Entry, refusal: Refusal) -> None:
            self._end(records.of_refusal(refusal, entry))

        for entry, planned in Planning(self.deps, wanted, refused, shown=not self.quiet).run():
            scope, job_id, outcome = planned.spec.scope, planned.answer.job_id, planned.answer.outcome
            asked = _Asked(entry.url, scope, planned.spec.expected_sha256)
            if outcome == "failed" and self.retry:
                with self.deps.database.write() as unit:
                    unit.owned(scope).retry(job_id)
                outcome = "known"
            if outcome in ("created", "known", "refreshed"):
                self.waiting.setdefault(job_id, Counter())[asked] += 1
            else:
                self._ended_before(asked, job_id, planned.answer.hint)

    def _ended_before(self, asked: _Asked, job_id: str, hint: str) -> None:
        with self.deps.database.read() as unit:
            view = unit.owned(asked.scope).get(job_id)
        if view is not None:
            if self._is_brought_back(view, asked.sha256):
                self.waiting.setdefault(job_id, Counter())[asked] += 1
                return
            record = records.of_job(self.deps, view, asked.url, held_before=True)
            if hint:
                record["error_message_safe"] = f"{record['error_message_safe'] or view.status}. {hint}"
            self._end(record | records.lost(self.deps, view, asked.sha256))

    def _is_brought_back(self, view: Any, sha256: str | None) -> bool:
        """Is a finished file that is missing or damaged being fetched again?"""
        from dlpipe.pipeline import wishes

        artifact, _ = records.result(self.deps, view)
        if artifact is None or view.status not in records.DONE or sha256 not in (None, artifact.sha256):
            return False
        try:
            fault = wishes.fault_of(self.deps, artifact, thorough=sha256 is not None)
            return fault is not None and wishes.bring_back(self.deps, view, artifact, fault)
        except StageFailure:  # the store cannot be read; the record tells
            return False

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def _wait(self, stack: Any) -> None:
        from dlpipe.cli.progress import watching
        from dlpipe.pipeline.planner import nudge

        began, moved = time.monotonic(), False
        ends = None if self.timeout is None else began + self.timeout
        done = self.ended.count
        try:
            with watching(self.deps, done + len(self.waiting), done=done, shown=not self.quiet) as display:
                self._turn(stack)
                nudge(self.deps)  # the messages are there before the workers have started
                while self.waiting:
                    self._turn(stack)
                    looked = time.monotonic()
                    moved = self._look(display) or moved
                    if not self.waiting or (ends is not None and time.monotonic() >= ends):
                        break
                    if stack is None and not moved and time.monotonic() - began > NO_WORKER_S:
                        output.note("no worker has taken a job yet; is one running? (celery -A dlpipe worker)")
                        moved = True
                    time.sleep(_pause_s(looked - began, time.monotonic() - looked))
        except KeyboardInterrupt:
            output.note("stopping; the bytes that are there are kept (Ctrl-C again to end at once)")
            if stack is not None:
                stack.stop(STOP_GRACE_S)
            self._say_what_stands()
            raise
        finally:
            if stack is not None:
                stack.stop(STOP_GRACE_S)
        if self.waiting:
            self._give_up()

    def _say_what_stands(self) -> None:
        ended, left = self.ended.count, sum(waits.total() for waits in self.waiting.values())
        output.note(f"{ended} of {ended + left} had come to their end; the same command goes on with the others")

    def _give_up(self) -> None:
        """Tell how the jobs stand that are not done in time. What ended while the stack stopped counts."""
        from dlpipe.cli.progress import waits_until

        for job_id, waits in self.waiting.items():
            with self.deps.database.read() as unit:
                view = unit.owned(_scope(waits)).get(job_id)
            for wait, times in waits.items():
                if view is None:
                    self._end(records.of_purged(job_id, wait.url), times)
                    continue
                record = records.of_job(self.deps, view, wait.url) | {"due_at": view.due_at}
                if view.status in records.ENDED:
                    record |= records.lost(self.deps, view, None)
                else:
                    last = f"; last: {view.error_message_safe}" if view.error_message_safe else ""
                    last += f"; it waits until {until}" if (until := waits_until(view)) else ""
                    record["error_message_safe"] = (
                        f"not done within {self.timeout:g} seconds{last}. It goes on when a stack runs again, "
                        "with `dlpipe up` or the same fetch"
                    )
                self._end(record, times)

    def _turn(self, stack: Any) -> None:
        """See to it that somebody runs the stack: we do, or whoever was here before us."""
        if stack is not None and not stack.try_start(at_once=True):
            stack.poll()

    def _look(self, display: Any) -> bool:
        """Collect the jobs that ended; True when any job has moved at all."""
        moved = False
        by_scope: dict[Any, list[str]] = {}
        for job_id, waits in self.waiting.items():
            by_scope.setdefault(_scope(waits), []).append(job_id)
        for scope, ids in by_scope.items():
            for begin in range(0, len(ids), LOOK_UP):
                with self.deps.database.read() as unit:
                    views = unit.owned(scope).get_many(ids[begin : begin + LOOK_UP])
                for view in views:
                    moved = moved or view.run > 0
                    if view.status in records.ENDED:
                        # Its bytes were hashed just now, on the way into the store.
                        self._ended_now(view, records.lost(self.deps, view, None), display)
                    elif view.paused_at is not None:
                        self._ended_now(view, _paused(view.job_id), display)
                    else:
                        display.going(view)
                for job_id in set(ids[begin : begin + LOOK_UP]).difference(view.job_id for view in views):
                    self._purged(job_id)
        display.refresh()
        return moved

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _ended_now(self, view: Any, besides: dict[str, str], display: Any) -> None:
        record: dict[str, Any] = {}
        for wait, times in self.waiting.pop(view.job_id).items():
            record = records.of_job(self.deps, view, wait.url) | besides
            self._end(record, times)
        display.ended(record)  # once, however often it was asked for

    def _purged(self, job_id: str) -> None:
        """The job is not there any more, so nothing would ever be heard of it."""
        for wait, times in self.waiting.pop(job_id).items():
            self._end(records.of_purged(job_id, wait.url), times)

    def _end(self, record: dict[str, Any], times: int = 1) -> None:
        if self.out is not None and record["path"] is not None and record["status"] in ("completed", "skipped"):
            record["out_path"] = None
            try:
                record["out_path"] = str(place_in(self.out, record))
            except OSError as error:
                self.unplaced = True
                output.note(
                    f"not put under {self.out}: {redact(record['url'])}: "
                    f"{error.strerror or error}; it is in the store: {record['path']}"
                )
        self.ended.add(record, times)

    def _finish(self) -> int:
        self.ended.show()
        return EXIT_FAILED if self.ended.is_bad or self.unplaced else EXIT_OK


def _scope(waits: Counter[_Asked]) -> Any:
    return next(iter(waits)).scope
