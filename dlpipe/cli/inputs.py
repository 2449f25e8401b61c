"""What to fetch, from arguments, text, CSV or JSONL files, and standard input."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import click

FORMATS = ("auto", "text", "csv", "jsonl")
_NUMBERS = ("max_bytes", "priority")
_FLAGS: Mapping[str, Mapping[str, bool]] = {"refresh": {"true": True, "1": True, "false": False, "0": False}}
_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")


def inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that `fetch` and `plan` share."""
    for add in reversed(
        (
            click.argument("urls", nargs=-1, metavar="[URL]..."),
            click.option(
                "-i", "--input", "files", multiple=True, metavar="FILE",
                help="Read requests from FILE (- is standard input): a URL a line, CSV with a header, or JSONL.",
            ),
            click.option("--format", "format_", type=click.Choice(FORMATS), default="auto",
                         help="How FILE is written; auto goes by its ending and first line."),
            click.option("--work", "work_id", help="The work that the files belong to."),
            click.option("--artifact", "artifact_id", help="Your name for the file within its work."),
            click.option("--tenant", "tenant_id", default="default", show_default=True),
            click.option("--project", "project_id", default="default", show_default=True),
            click.option("--sha256", help="The file must hash to this."),
            click.option("--media-type", help="The file must be of this type, e.g. application/pdf."),
            click.option("--max-bytes", type=click.IntRange(min=0), help="Refuse larger files."),
            click.option("--ext", help="The stored file's extension; otherwise by URL and type."),
            click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first."),
            click.option("--request-id", help="Your own reference, kept with the job."),
        )
    ):  # fmt: skip
        command = add(command)
    return command


def requests(urls: tuple[str, ...], files: tuple[str, ...], format_: str, **common: Any) -> Iterator[dict[str, Any]]:
    """All requests in order; options hold for those that do not say otherwise themselves."""
    if "-" in urls:
        urls, files = tuple(url for url in urls if url != "-"), (*files, "-")
    if not urls and not files:
        raise click.UsageError("Give at least one URL, or -i FILE. See --help for examples.")
    if len(urls) > 1 and common.get("sha256"):
        raise click.UsageError("--sha256 names one file; with several URLs use a CSV or JSONL file.")
    given = {name: value for name, value in common.items() if value is not None}
    for file in files:
        _check(file)
    return _all(urls, files, format_, given)


def _check(file: str) -> None:
    """Anything that can be read, also a pipe; a pipe is not opened yet, since it can be opened once only."""
    if file == "-":
        if sys.stdin is None:
            raise click.UsageError("Standard input is closed; give a file with -i FILE.")
        return
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISREG(mode):
            open(file, "rb").close()
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    if stat.S_ISDIR(mode) or not os.access(file, os.R_OK):
        raise click.UsageError(f"{file} is not a file that can be read.")


def _unreadable(file: str, error: Exception) -> click.UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return click.UsageError(f"{_called(file)} is not a file that can be read: {reason}.")


def _called(file: str) -> str:
    return "standard input" if file == "-" else file


def _all(
    urls: tuple[str, ...], files: tuple[str, ...], format_: str, given: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for url in urls:
        yield {**given, "url": url}
    for file in files:
        try:
            with _opened(file) as stream:
                for fields in _read(stream, file, format_):
                    yield {**given, **fields}
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(file, error) from None


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[str]]:
    if file == "-":
        yield sys.stdin
    else:
        with open(file, encoding="utf-8-sig", newline="", errors="surrogateescape") as stream:
            yield stream


def _read(stream: IO[str], name: str, format_: str) -> Iterator[dict[str, Any]]:
    lines = iter(stream)
    first = next(lines, None)
    if first is None:
        return
    match _format(name, first) if format_ == "auto" else format_:
        case "jsonl":
            yield from _jsonl(_again(first, lines))
        case "csv":
            yield from _csv(_again(first, lines), name)
        case _:
            yield from _text(_again(first, lines))


def _again(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _format(name: str, first: str) -> str:
    if name.endswith((".jsonl", ".ndjson")) or first.lstrip().startswith("{"):
        return "jsonl"
    try:
        header = [cell.strip().lower() for cell in next(csv.reader([first]), [])]
    except csv.Error:
        header = []
    if name.endswith(".csv") or (len(header) > 1 and "url" in header):
        return "csv"
    return "text"


def _text(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            yield {"url": text}


def _csv(lines: Iterator[str], name: str) -> Iterator[dict[str, Any]]:
    for row in _rows(lines, name):
        fields = {(name or "?").strip().lower(): value.strip() for name, value in row.items() if isinstance(value, str)}
        fields = {name: value for name, value in fields.items() if value}
        if fields:
            yield {name: _typed(name, value) for name, value in fields.items()}


def _rows(lines: Iterator[str], name: str) -> Iterator[dict[Any, Any]]:
    at = 0

    def counted() -> Iterator[str]:
        nonlocal at
        for at, line in enumerate(lines, start=1):  # noqa: B007 - told in the error below
            yield line

    try:
        yield from csv.DictReader(counted())
    except csv.Error as error:
        raise click.UsageError(f"{_called(name)}, line {at}: {error}.") from None


def _jsonl(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            try:
                fields = json.loads(line)
            except ValueError:
                fields = None
            # Not an object: passed on as a request without a URL, which is refused with its position.
            yield fields if isinstance(fields, dict) else {"not_an_object": None}


def _typed(name: str, value: str) -> Any:
    """What is no number, or no yes or no, stays text, and is refused with its line."""
    if name in _FLAGS:
        return _FLAGS[name].get(value.lower(), value)
    return int(value) if name in _NUMBERS and _NUMBER.match(value) else value
