"""`dlpipe fetch`: the whole job on this machine, in one command."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output, records
from dlpipe.cli.inputs import inputs, requests
from dlpipe.cli.placing import place_in
from dlpipe.core.urls import redact

POLL_S = 0.1
LOOK_UP = 400
STOP_GRACE_S = 8.0
NO_WORKER_S = 15.0


@click.command(
    epilog="""\b
Examples:
  dlpipe fetch https://example.org/a.pdf https://example.org/b.zip
  dlpipe fetch -i urls.txt --out ./papers
  dlpipe fetch https://example.org/a.pdf --sha256 9f86d0…  --media-type application/pdf
  cat works.jsonl | dlpipe fetch -i - --json > results.jsonl

\b
Files live in DLPIPE_HOME (./dlpipe-data unless set). What is there already is not fetched again, and an
interrupted fetch goes on from the bytes that are there.
Servers on this machine or in private networks are refused unless DLPIPE_ALLOW_PRIVATE=1.
Exit status: 0 all completed or skipped, 1 some failed, 2 wrong use, 130 interrupted.
"""
)
@inputs
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Also put the files there, under readable names."
)
@click.option("--retry", is_flag=True, help="Try files again that failed for good before.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per job when it ends.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, only errors and results.")
def fetch(
    urls: tuple[str, ...], files: tuple[str, ...], format_: str, out: Path | None, retry: bool, as_json: bool,
    quiet: bool, **common: Any,
) -> int:  # fmt: skip
    """Fetch files now, on this machine, and wait for them.

    Starts what it needs (a private Redis, workers, a scheduler) and ends it again; nothing to install.
    """
    wanted = requests(urls, files, format_, **common)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = _Fetch(out, retry, as_json, quiet)
    return job.run(wanted)


@dataclass(slots=True)
class _Waiting:
    url: str
    scope: Any


@dataclass
class _Fetch:
    out: Path | None
    retry: bool
    as_json: bool
    quiet: bool
    ended: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[str, list[_Waiting]] = field(default_factory=dict)

    def run(self, wanted: Iterator[dict[str, Any]]) -> int:
        from dlpipe import wiring
        from dlpipe.pipeline.reconcile import reconcile
        from dlpipe.tasks import deps

        self.deps = deps()
        self._plan(wanted)
        stack = None
        if self.waiting:
            stack = wiring.stack(lambda _pid: reconcile(self.deps))
            self._wait(stack)
        return self._finish()

    # ── planning ──────────────────────────────────────────────────────────────────────────────────

    def _plan(self, wanted: Iterator[dict[str, Any]]) -> None:
        from dlpipe.pipeline.planner import Refusal, plan_each

        given: dict[int, str | None] = {}

        def remembered() -> Iterator[dict[str, Any]]:
            for position, fields in enumerate(wanted, start=1):
                url = fields.get("url")
                given[position] = redact(url) if isinstance(url, str) else None
                yield fields

        for answered in plan_each(self.deps, remembered()):
            url = given.pop(answered.position)
            if isinstance(answered, Refusal):
                self._end(records.of_refusal(answered, url))
                continue
            scope, job_id, outcome = answered.spec.scope, answered.answer.job_id, answered.answer.outcome
            if outcome == "failed" and self.retry:
                with self.deps.database.write() as unit:
                    unit.jobs.retry(scope, job_id)
                outcome = "known"
            if outcome in ("created", "known"):
                self.waiting.setdefault(job_id, []).append(_Waiting(url or "", scope))
            else:
                self._ended_before(scope, job_id, url or "", answered.answer.hint)

    def _ended_before(self, scope: Any, job_id: str, url: str, hint: str) -> None:
        with self.deps.database.read() as unit:
            view = unit.jobs.get(scope, job_id)
        if view is not None:
            record = records.of_job(self.deps, view, url, held_before=True)
            if hint:
                record["error_message_safe"] = f"{record['error_message_safe'] or view.status}. {hint}"
            if record["path"] is not None and not Path(record["path"]).exists():
                record |= {
                    "status": "failed",
                    "error_code": "file_missing",
                    "error_message_safe": "it was fetched before, but its file is gone from the store",
                }
            self._end(record)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def _wait(self, stack: Any) -> None:
        from dlpipe.cli.progress import watching
        from dlpipe.pipeline.planner import nudge

        total = len(self.ended) + len(self.waiting)
        try:
            with watching(self.deps, total, shown=not self.quiet) as display:
                self._turn(stack)
                nudge(self.deps)  # the messages are there before the workers have started
                began, moved = time.monotonic(), False
                while self.waiting:
                    self._turn(stack)
                    looked = time.monotonic()
                    moved = self._look(display) or moved
                    if stack is None and not moved and time.monotonic() - began > NO_WORKER_S:
                        output.note("no worker has taken a job yet; is one running? (celery -A dlpipe worker)")
                        moved = True
                    time.sleep(max(POLL_S, 2 * (time.monotonic() - looked)))
        except KeyboardInterrupt:
            output.note("stopping; the bytes that are there are kept (Ctrl-C again to end at once)")
            raise
        finally:
            if stack is not None:
                stack.stop(STOP_GRACE_S)

    def _turn(self, stack: Any) -> None:
        """See to it that somebody runs the stack: we do, or whoever was here before us."""
        if stack is not None and not stack.try_start():
            stack.poll()

    def _look(self, display: Any) -> bool:
        """Collect the jobs that ended; True when any job has moved at all."""
        moved = False
        by_scope: dict[Any, list[str]] = {}
        for job_id, waits in self.waiting.items():
            by_scope.setdefault(waits[0].scope, []).append(job_id)
        for scope, ids in by_scope.items():
            for begin in range(0, len(ids), LOOK_UP):
                with self.deps.database.read() as unit:
                    views = unit.jobs.get_many(scope, ids[begin : begin + LOOK_UP])
                for view in views:
                    moved = moved or view.run > 0
                    if view.status in records.ENDED:
                        for wait in self.waiting.pop(view.job_id):
                            self._end(records.of_job(self.deps, view, wait.url))
                            display.ended(self.ended[-1])
                    else:
                        display.going(view)
        display.refresh()
        return moved

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _end(self, record: dict[str, Any]) -> None:
        if self.out is not None and record["path"] is not None and record["status"] in ("completed", "skipped"):
            record["out_path"] = str(place_in(self.out, record))
        self.ended.append(record)
        if self.as_json:
            output.as_json(record)

    def _finish(self) -> int:
        bad = [record for record in self.ended if record["status"] not in ("completed", "skipped")]
        if not self.as_json:
            output.table(
                ["status", "size", "how", "file"],
                (
                    (r["status"], output.size(r["byte_size"]), r["dedupe_action"] or "-",
                     r.get("out_path") or r["path"] or r["url"])
                    for r in self.ended
                ),
            )  # fmt: skip
        for record in bad:
            output.note(
                f"{record['status']}: {output.safe(record['url'])}: {record['error_message_safe']} "
                f"[{record['error_code']}]"
            )
        return EXIT_FAILED if bad else EXIT_OK
