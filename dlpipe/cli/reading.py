"""How far reading and planning have come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlpipe.cli import output

Told = Callable[[int, int], None]
"""Called with the bytes read and the requests planned so far."""
EVERY_S = 10.0


@contextmanager
def reading(total: int | None, *, shown: bool) -> Iterator[Told]:
    """`total` is the size of the files as they lie there, packed or not."""
    if not shown:
        yield lambda _read, _count: None
    elif sys.stderr.isatty():
        with _bar(total) as told:
            yield told
    else:
        yield _Lines(total)


@contextmanager
def _bar(total: int | None) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("planning"), BarColumn(), DownloadColumn(binary_units=True)]
    bars = Progress(
        *columns, TextColumn("{task.fields[planned]:,} planned"), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bars:
        row = bars.add_task("", total=total, planned=0)
        yield lambda read, count: bars.update(row, completed=read, planned=count)


class _Lines:
    def __init__(self, total: int | None) -> None:
        self._total = total
        self._next = time.monotonic() + EVERY_S

    def __call__(self, read: int, count: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        share = f" ({100 * read // self._total} % of the input)" if self._total else ""
        output.note(f"{count:,} planned so far{share}")
