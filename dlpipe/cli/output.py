"""How results are shown: one JSON object a line for programs, tables and sentences for people.

The one place that a command prints from (a test sees to that), so that nothing a server, a file or an argument says
reaches a terminal as more than text (SAFE-2). Progress bars and `top` draw by themselves, with `safe` texts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import IO, Any

import click

from dlpipe.core.escape import escape

_LEAST_LAST = 40
"""A last column that has less room than this is wider than the terminal."""


def as_json(value: Mapping[str, Any]) -> None:
    """One object on one line of standard output."""
    click.echo(json_line(value))


def json_line(value: Mapping[str, Any]) -> str:
    """Printable ASCII, whatever it says, and read back as it was."""
    return json.dumps(value, default=_plain, ensure_ascii=True)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def safe(text: object) -> str:
    """Text from elsewhere, as it may be printed on a terminal."""
    return escape(str(text))


def say(text: str = "") -> None:
    """A line that was asked for, on standard output."""
    click.echo(safe(text))


def note(text: str) -> None:
    """A line for people: always on standard error."""
    click.echo(safe(text), err=True)


def error(what: str, code: str, to_do: str) -> None:
    """What happened and what to do. What `what` has below its first line, as the end of a log, is set in."""
    first, *more = f"{what} [{code}]".split("\n")
    note(f"error: {first}")
    for line in more:
        note(f"    {line}")
    if to_do:
        note(f"  {to_do}")


def cells(row: Sequence[object]) -> None:
    """A row for programs, parted by tabs."""
    click.echo("\t".join(map(safe, row)))


def exact(text: str) -> None:
    """What a program takes up as it is, as a path or a script. On a terminal it is shown like anything else."""
    click.echo(escape(text, keep="\n\t") if sys.stdout.isatty() else text)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns on a terminal; tab-separated lines when piped."""
    texts = [[safe(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [headers, *texts]:
            cells(row)
        return
    header, *lines = columns(headers, texts, shutil.get_terminal_size().columns)
    click.echo(click.style(header, bold=True) if live(sys.stdout) else header)
    for line in lines:
        click.echo(line)


def columns(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """One line each, or more where the last column has more to say than fits.

    What may be copied, as an id, is never broken in two: rather than that, the terminal breaks the line.
    """
    from rich.cells import cell_len

    *firsts, _ = zip(headers, *rows, strict=True)
    widths = [max(map(cell_len, column)) for column in firsts]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for *cells, said in (headers, *rows):
        begin = "".join(cell + " " * (room - cell_len(cell) + 2) for cell, room in zip(cells, widths, strict=True))
        parts = textwrap.wrap(said, max(width - indent, _LEAST_LAST), break_long_words=False, break_on_hyphens=False)
        lines += [
            (start + part).rstrip() for start, part in zip_longest([begin], parts or [""], fillvalue=" " * indent)
        ]
    return lines


def live(stream: IO[str]) -> bool:
    """Can what was written there be written over?"""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def size(count: int | None) -> str:
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return str(count)


def when(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def say_who_works() -> None:
    """After something was made due: that nobody is there to do it, if nobody is."""
    from dlpipe import wiring

    if wiring.idle():
        note("no worker runs on this data directory; start one with: dlpipe up")
