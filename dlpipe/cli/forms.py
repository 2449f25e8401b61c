"""How a file of requests is written: lines of text, a table with a header, or JSON objects."""

from __future__ import annotations

import csv
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from dlpipe.cli.columns import Columns
from dlpipe.cli.lines import UNSUPPORTED, Line
from dlpipe.core.errors import InvalidInput

FORMATS = ("auto", "text", "csv", "jsonl")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
MARK = "#dlpipe:"
"""Lines that begin so are ours (cli/rejects.py), and no requests in any format."""
MAX_ROW_LINES = 100
_PACKED = (".gz", ".bz2", ".xz")


@dataclass(frozen=True, slots=True)
class Read:
    """What one line, or one row over several, asks for; `bad` says why that cannot be known."""

    line: int
    raw: bytes
    fields: dict[str, Any] = field(default_factory=dict)
    bad: InvalidInput | None = None
    header: bytes = b""
    """Of a table: the line that says what its columns are."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the caller said of the files."""

    columns: Columns
    format_: str = "auto"
    delimiter: str | None = None

    def read(self, lines: Iterator[Line], name: str) -> Iterator[Read]:
        """What each line asks for; InvalidInput, before the first, when the file as a whole cannot be meant."""
        first = next((line for line in lines if line.bad or not _is_empty(line.text)), None)
        if first is None:
            return iter(())
        if first.bad is not None and first.bad.code == UNSUPPORTED:
            raise first.bad
        match self._format(name, first):
            case "jsonl":
                return self._objects(chain([first], lines))
            case "csv":
                return self._table(first, lines, name)
            case _:
                return _text(chain([first], lines))

    def _format(self, name: str, first: Line) -> str:
        if self.format_ != "auto":
            return self.format_
        plain = _plain_name(name)
        begin = first.text.lstrip()
        if begin.startswith("[") and not first.bad:
            raise InvalidInput(
                "it is one JSON array",
                code=UNSUPPORTED,
                hint="Write one object a line: jq -c '.[]' FILE | dlpipe … -",
            )
        if plain.endswith((".jsonl", ".ndjson", ".json")) or begin.startswith("{"):
            return "jsonl"
        if plain.endswith((".csv", ".tsv")):
            return "csv"
        if len(self.columns.needed) > 1:
            return "csv"  # no line of text gives more than a URL
        # One more than the columns when one of them is the URL; a single column has to be just that.
        return "csv" if max(map(self.columns.hits, _split(first.text).values())) >= 2 else "text"

    def _objects(self, lines: Iterator[Line]) -> Iterator[Read]:
        for line in lines:
            if line.bad or not _is_empty(line.text):
                yield self._object(line)

    def _object(self, line: Line) -> Read:
        if line.bad is not None:
            return Read(line.number, line.raw, bad=line.bad)
        try:
            given = json.loads(line.text.rstrip())
        except RecursionError:
            return Read(line.number, line.raw, bad=_malformed("it is nested too deeply"))
        except json.JSONDecodeError as error:
            # Its own words would give the line a second number.
            return Read(
                line.number, line.raw, bad=_malformed(f"it is not JSON: {error.msg} at character {error.pos + 1}")
            )
        except ValueError as error:
            return Read(line.number, line.raw, bad=_malformed(f"it is not JSON: {error}"))
        if not isinstance(given, dict):
            return Read(line.number, line.raw, bad=_malformed("it is JSON, but not an object"))
        try:
            return Read(line.number, line.raw, self.columns.of_object(given))
        except InvalidInput as error:
            return Read(line.number, line.raw, bad=error)

    def _table(self, first: Line, lines: Iterator[Line], name: str) -> Iterator[Read]:
        delimiter = DELIMITERS.get(self.delimiter or "", self.delimiter)
        if first.text.lower().startswith("sep=") and len(first.text.strip()) == 5:  # what Excel writes above a table
            delimiter = delimiter or first.text.strip()[4]
            first = next(lines, Line(first.number + 1, b""))
        if first.bad is not None:
            raise first.bad  # without its header nothing of a table can be read
        rows = _Rows(chain([first], lines), delimiter or self._guess(first.text, _plain_name(name)))
        head = next(rows)
        if isinstance(head, Read):
            raise head.bad or _malformed("it has no header")
        _, raw, header = head
        found = self._rows(rows, header, self.columns.of_header(header))
        return (replace(read, header=raw) for read in found)

    def _guess(self, header: str, name: str) -> str:
        split = _split(header)
        first = "\t" if name.endswith(".tsv") else ","
        return max(split, key=lambda mark: (self.columns.hits(split[mark]), len(split[mark]), mark == first))

    def _rows(self, rows: _Rows, header: Sequence[str], fields: Sequence[tuple[str, int]]) -> Iterator[Read]:
        for row in rows:
            if isinstance(row, Read):
                yield row
                continue
            line, raw, cells = row
            if any(cell.strip() for cell in cells[len(header) :]):
                bad = _malformed(
                    f"it has {len(cells)} cells, and the header has {len(header)}; a cell that holds the delimiter "
                    "has to be quoted"
                )
                yield Read(line, raw, bad=bad)
            elif any(cell.strip() for cell in cells):
                yield Read(line, raw, self.columns.of_row(fields, cells))


class _Rows:
    """Rows of a table, each with its first line. A row that cannot be read costs that line and no other."""

    def __init__(self, lines: Iterator[Line], delimiter: str) -> None:
        self._lines, self._delimiter = lines, delimiter
        self._again: deque[Line] = deque()

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> Read | tuple[int, bytes, list[str]]:
        while True:
            first = self._take()
            if first is None:
                raise StopIteration
            if first.bad is not None:
                return Read(first.number, first.raw, bad=first.bad)
            if not _is_empty(first.text):
                return self._row(first)

    def _take(self) -> Line | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def _row(self, first: Line) -> Read | tuple[int, bytes, list[str]]:
        taken = [first]

        def wanted() -> Iterator[str]:
            yield first.text
            while len(taken) < MAX_ROW_LINES and (more := self._take()) is not None:
                taken.append(more)
                if more.bad is not None:
                    return
                yield more.text

        try:
            # Strict: a quote that is not closed must not swallow the rows behind it.
            cells = next(csv.reader(wanted(), delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            self._again.extendleft(reversed(taken[1:]))
            return Read(first.number, first.raw, bad=_malformed(_why(str(error))))
        return first.number, b"".join(line.raw for line in taken), cells


def _text(lines: Iterator[Line]) -> Iterator[Read]:
    for line in lines:
        text = line.text.strip()
        if line.bad is not None:
            yield Read(line.number, line.raw, bad=line.bad)
        elif text and not text.startswith("#"):
            yield Read(line.number, line.raw, {"url": text})


def _split(header: str) -> dict[str, list[str]]:
    """The cells of a header by each delimiter there is."""
    found = {}
    for mark in DELIMITERS.values():
        try:
            found[mark] = next(csv.reader([header], delimiter=mark), [])
        except csv.Error:
            found[mark] = []
    return found


def _is_empty(text: str) -> bool:
    return not text.strip() or text.startswith(MARK)


def _plain_name(name: str) -> str:
    name = name.lower()
    return next((name.removesuffix(ending) for ending in _PACKED if name.endswith(ending)), name)


def _why(error: str) -> str:
    if "unexpected end" in error:
        return "a quotation mark is opened and not closed"
    if "field limit" in error:
        return f"a cell has more than {csv.field_size_limit():,} characters"
    return f"it is not a row of a table: {error}"


def _malformed(what: str) -> InvalidInput:
    return InvalidInput(f"the line cannot be read: {what}", code="line_malformed", hint="Correct the line and repeat.")
