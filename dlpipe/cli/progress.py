"""Live progress on a terminal; one line per ended job elsewhere. Always on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from dlpipe.cli import output
from dlpipe.core.model import JobView
from dlpipe.core.recovery import PUT_OFF
from dlpipe.core.urls import redact
from dlpipe.pipeline.deps import Deps

SHOWN_JOBS = 8
_AT_ONCE = timedelta(seconds=1)


class Display(Protocol):
    def going(self, view: JobView) -> None: ...
    def ended(self, record: Mapping[str, Any]) -> None: ...
    def refresh(self) -> None: ...


@contextmanager
def watching(deps: Deps, total: int, *, done: int, shown: bool) -> Iterator[Display]:
    if not shown:
        yield _Silent()
    elif output.live(sys.stderr):
        with _Bars(deps, total, done) as bars:
            yield bars
    else:
        yield _Lines(total, done)


def waits_until(view: JobView) -> str | None:
    """The time of day, and the day when it is another, until which the job waits; None when it need not."""
    now = datetime.now(UTC)
    if view.due_at is None or view.due_at <= now + _AT_ONCE:
        return None
    due = view.due_at.astimezone()
    return due.strftime("%H:%M:%S" if due.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S")


class _Silent:
    def going(self, view: JobView) -> None: ...
    def ended(self, record: Mapping[str, Any]) -> None: ...
    def refresh(self) -> None: ...


class _Lines(_Silent):
    def __init__(self, total: int, done: int) -> None:
        self._done, self._total = done, total
        self._told: set[tuple[str, str | None, datetime | None]] = set()

    def going(self, view: JobView) -> None:
        """One line for each job and reason that it waits for, and for each time that its server puts it off."""
        until = waits_until(view)
        told = (view.job_id, view.error_code, view.due_at if view.error_code in PUT_OFF else None)
        if until is None or told in self._told:
            return
        self._told.add(told)
        why = f"{output.safe(view.error_message_safe)} [{view.error_code}]" if view.error_code else "planned for then"
        output.note(f"waiting until {until}: {output.safe(redact(view.url))}: {why}")

    def ended(self, record: Mapping[str, Any]) -> None:
        self._done += 1
        size = output.size(record["byte_size"])
        output.note(f"[{self._done}/{self._total}] {record['status']} {size} {output.safe(redact(record['url']))}")


class _Bars:
    """One bar for all jobs, and one for each of the first few that are moving."""

    def __init__(self, deps: Deps, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self._deps = deps
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._total = total
        self._done, self._failed = done, 0
        self._all = self._bars.add_task("0 of 0", total=None)
        self._bytes = 0
        self._rows: dict[str, Any] = {}
        self._moving: dict[str, JobView] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def going(self, view: JobView) -> None:
        if view.run > 0 and (view.job_id in self._moving or len(self._moving) < SHOWN_JOBS):
            self._moving[view.job_id] = view

    def ended(self, record: Mapping[str, Any]) -> None:
        self._done += 1
        self._failed += record["status"] not in ("completed", "skipped")
        self._bytes += record["byte_size"] or 0
        self._moving.pop(record["job_id"], None)
        row = self._rows.pop(record["job_id"], None)
        if row is not None:
            self._bars.remove_task(row)

    def refresh(self) -> None:
        failed = f", {self._failed} failed" if self._failed else ""
        going = self._deps.progress.get(list(self._moving))
        self._bars.update(
            self._all,
            description=f"{self._done} of {self._total} files{failed}",
            completed=self._bytes + sum(done for done, _ in going.values()),
        )
        for job_id, view in self._moving.items():
            done, total = going.get(job_id, (0, None))
            if job_id not in self._rows:
                self._rows[job_id] = self._bars.add_task("", total=None)
            name = output.safe(view.url.split("?", 1)[0].rpartition("/")[2])[-40:]
            until = waits_until(view)
            state = f"{view.error_code} until {until}" if until and view.error_code else view.state
            self._bars.update(self._rows[job_id], description=f"  {name} {state}", completed=done, total=total)
