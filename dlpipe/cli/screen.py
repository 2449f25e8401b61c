"""A snapshot of the running pipeline as lines of text, for a terminal of any size or for a pipe. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dlpipe.cli import output
from dlpipe.core.top import LastRound, Reason, Running, Snapshot, Waiting

_SHORT_ID = 8


@dataclass(frozen=True, slots=True)
class Column:
    """`rank`: those of the highest go first where the terminal is narrow. The one that `grows` takes what is left."""

    title: str
    width: int
    rank: int = 0
    grows: bool = False
    right: bool = False


_RUNNING = (
    Column("JOB", _SHORT_ID),
    Column("STAGE", 13),
    Column("HOST", 12, grows=True),
    Column("DONE", 9, right=True),
    Column("OF", 9, 3, right=True),
    Column("RATE", 11, 1, right=True),
    Column("ETA", 7, 2, right=True),
    Column("RUN", 3, 5, right=True),
    Column("LEASE", 5, 4, right=True),
    Column("WORKER", 14, 4),
)
_WAITING = (
    Column("JOBS", 6, right=True),
    Column("WAITS", 12),
    Column("HOST", 12, grows=True),
    Column("CODE", 18, 1),
    Column("UNTIL", 19, 2),
    Column("HELD UP BY", 22, 3),
    Column("FIRST JOB", 9, 4),
)
_FAILED = (Column("JOBS", 6, right=True), Column("CODE", 12, grows=True), Column("LAST", 19, 1))


def render(seen: Snapshot, width: int | None = None, height: int | None = None) -> list[str]:
    """The lines; without a `width` (or `height`) nothing is cut, and ids are whole."""
    head = [*_head(seen), *(f"! {output.safe(trouble)}" for trouble in seen.troubles)]
    tables = [
        _table("running", _RUNNING, [_running(one, whole=width is None) for one in seen.running], width),
        _table("waiting", _WAITING, [_waiting(one, seen.at, whole=width is None) for one in seen.waiting], width),
        _table("failed", _FAILED, [(str(f.jobs), f.code, _time(f.last_at, None)) for f in seen.failures], width),
    ]
    lines = [*head, *_fitted([table for table in tables if table], None if height is None else height - len(head))]
    cut = lines if height is None else lines[: max(1, height)]
    return cut if width is None else [_cut(line, max(width, 1)) for line in cut]


def _head(seen: Snapshot) -> list[str]:
    at = "never seen" if seen.at is None else f"{seen.at:%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"dlpipe top  {output.safe(seen.tenant_id)}/{output.safe(seen.project_id)}  {at}"]
    if seen.at is None:
        return lines
    counts = (f"{status} {_bounded(count, seen.counted_to)}" for status, count in seen.counts.items())
    lines.append("jobs       " + "  ".join(counts))
    rate = "" if seen.rate_bytes_s is None else f", {output.size(round(seen.rate_bytes_s))}/s now"
    lines.append(
        f"flow       {seen.finished_last_minute} files, {output.size(seen.finished_bytes_last_minute)} "
        f"in the last minute{rate}"
    )
    queued = "its depth is not known" if seen.queued is None else f"{seen.queued} waiting"
    at_work = ", ".join(f"{output.safe(one.name)} ({one.jobs})" for one in seen.workers) or "none has a job"
    lines.append(f"queue      {queued}, {seen.in_flight} of {seen.window} in flight; workers: {at_work}")
    lines.append(f"reconcile  {_round(seen.reconcile)}")
    return lines


def _round(last: LastRound | None) -> str:
    if last is None:
        return "no round is known"
    found = ", ".join(f"{output.safe(kind)} {count}" for kind, count in sorted(last.found.items()) if count)
    return f"{span(last.ago_s)} ago: {found or 'nothing to do'}"


def _running(one: Running, *, whole: bool) -> tuple[str, ...]:
    return (
        one.job_id if whole else one.job_id[:_SHORT_ID],
        one.stage,
        one.host,
        output.size(one.done_bytes),
        output.size(one.total_bytes),
        "-" if one.rate_bytes_s is None else f"{output.size(round(one.rate_bytes_s))}/s",
        "-" if one.eta_s is None else span(one.eta_s),
        str(one.run),
        span(one.lease_age_s),
        one.worker,
    )


_WORDS = {
    Reason.PAUSED: "paused",
    Reason.NOT_BEFORE: "not before",
    Reason.POSTPONED: "put off",
    Reason.RETRY: "retry",
    Reason.HOST_FULL: "host is full",
    Reason.WINDOW_FULL: "window full",
    Reason.DUE: "due",
    Reason.SENT: "sent",
}


def _waiting(one: Waiting, at: datetime | None, *, whole: bool) -> tuple[str, ...]:
    held_up = []
    if one.circuit_open_s is not None:
        held_up.append(f"circuit {span(one.circuit_open_s)}")
    if one.cooling_s is not None:
        held_up.append(f"cool-down {span(one.cooling_s)}")
    by = ", ".join(held_up) or "-"
    first = one.first_job_id if whole else one.first_job_id[:_SHORT_ID]
    place = one.origin.partition("://")[2] or one.host
    return str(one.jobs), _WORDS[one.reason], place, one.code or "-", _time(one.until, at), by, first


def _table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """What it is and how many, the titles, the rows; nothing when there are none."""
    if not rows:
        return []
    cells = [[output.safe(cell) for cell in row] for row in rows]
    shown, widths = _layout(columns, cells, width)
    lines = [f"{title} ({len(rows)})", _line(shown, widths, [columns[n].title for n in shown], columns)]
    lines += [_line(shown, widths, [row[n] for n in shown], columns) for row in cells]
    return lines


def _layout(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide: each as wide as it must be, the one that grows as wide as it may."""
    needed = [max(len(column.title), *(len(row[n]) for row in cells)) for n, column in enumerate(columns)]
    if width is None:
        return list(range(len(columns))), needed
    kept = [
        min(need, column.width) if not column.grows else column.width
        for need, column in zip(needed, columns, strict=True)
    ]
    shown = list(range(len(columns)))
    while len(shown) > 1 and sum(kept[n] + 1 for n in shown) - 1 > width:
        worst = max(shown, key=lambda n: (columns[n].rank, n))
        if columns[worst].rank == 0:
            break
        shown.remove(worst)
    spare = width - (sum(kept[n] + 1 for n in shown) - 1)
    for n in shown:
        if columns[n].grows:
            kept[n] = max(1, min(needed[n], kept[n] + spare))
    return shown, [kept[n] for n in shown]


def _line(shown: Sequence[int], widths: Sequence[int], cells: Sequence[str], columns: Sequence[Column]) -> str:
    put: list[str] = []
    for n, width, cell in zip(shown, widths, cells, strict=True):
        align: Callable[[str, int], str] = str.rjust if columns[n].right else str.ljust
        put.append(align(_cut(cell, width), width))
    return " ".join(put).rstrip()


def _fitted(tables: list[list[str]], room: int | None) -> list[str]:
    """All of them, or so much of each that every one is seen: the longest gives way first, and says by how much."""
    if room is None:
        return [line for table in tables for line in table]
    sizes = [len(table) for table in tables]
    while sum(sizes) > room and max(sizes, default=0) > 3:
        sizes[sizes.index(max(sizes))] -= 1
    lines: list[str] = []
    for table, size in zip(tables, sizes, strict=True):
        if size < len(table):
            lines += [*table[: size - 1], f"  … and {len(table) - size + 1} more"]
        else:
            lines += table
    return lines


def _bounded(count: int, bound: int) -> str:
    return f"{count}+" if count >= bound else str(count)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _time(moment: datetime | None, at: datetime | None) -> str:
    if moment is None:
        return "-"
    if at is not None and moment - at < timedelta(days=1):
        return f"{moment:%H:%M:%S} ({span((moment - at).total_seconds())})"
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def span(seconds: float) -> str:
    """So long, in two figures or so."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} min"
    return f"{whole // 3_600} h" if whole < 172_800 else f"{whole // 86_400} d"
