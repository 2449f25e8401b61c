"""Live progress on a terminal; one line per ended job elsewhere. Always on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from dlpipe.cli import output
from dlpipe.core.model import JobView
from dlpipe.pipeline.deps import Deps

SHOWN_JOBS = 8


class Display(Protocol):
    def going(self, view: JobView) -> None: ...
    def ended(self, record: Mapping[str, Any]) -> None: ...
    def refresh(self) -> None: ...


@contextmanager
def watching(deps: Deps, total: int, *, shown: bool) -> Iterator[Display]:
    if not shown:
        yield _Silent()
    elif sys.stderr.isatty():
        with _Bars(deps, total) as bars:
            yield bars
    else:
        yield _Lines(total)


class _Silent:
    def going(self, view: JobView) -> None: ...
    def ended(self, record: Mapping[str, Any]) -> None: ...
    def refresh(self) -> None: ...


class _Lines(_Silent):
    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def ended(self, record: Mapping[str, Any]) -> None:
        self._done += 1
        size = output.size(record["byte_size"])
        output.note(f"[{self._done}/{self._total}] {record['status']} {size} {output.safe(record['url'])}")


class _Bars:
    """One bar for all jobs, and one for each of the first few that are moving."""

    def __init__(self, deps: Deps, total: int) -> None:
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
        self._done = self._failed = 0
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
            state = view.error_code if view.due_at is not None and view.error_code else view.state
            self._bars.update(self._rows[job_id], description=f"  {name} {state}", completed=done, total=total)
