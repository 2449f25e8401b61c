"""How results are shown: one JSON object a line for programs, tables and sentences for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click


def as_json(value: Mapping[str, Any]) -> None:
    """One object on one line of standard output."""
    click.echo(json_line(value))


def json_line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=True)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def safe(text: object) -> str:
    """Text from elsewhere, as it may be printed on a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns on a terminal; tab-separated lines when piped."""
    if not sys.stdout.isatty():
        for row in [headers, *rows]:
            click.echo("\t".join(safe(cell) for cell in row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        grid.add_column(header, overflow="fold")
    for row in rows:
        grid.add_row(*(escape(safe(cell)) for cell in row))
    Console().print(grid)


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


def note(text: str) -> None:
    """A line for people: always on standard error."""
    click.echo(text, err=True)
