"""What to fetch, from arguments, files and standard input: each request with the place where it stands."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import IO, Any

import click

from dlpipe.cli import forms
from dlpipe.cli.columns import Columns
from dlpipe.cli.lines import Counted, lines, unpacked
from dlpipe.core.errors import InvalidInput

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as it was given. `bad` says why it cannot even be read."""

    fields: Mapping[str, Any]
    file: str | None = None
    line: int = 0
    raw: bytes = b""
    bad: InvalidInput | None = None
    header: bytes = b""

    @property
    def url(self) -> Any:
        return self.fields.get("url")

    @property
    def where(self) -> str:
        if self.file is None:
            return f"no. {self.line}"
        return f"{called(self.file)}, line {self.line}" if self.line else called(self.file)


@dataclass
class Inputs:
    """All requests of a command, in order; options hold for those that do not say otherwise themselves."""

    urls: tuple[str, ...]
    files: tuple[str, ...]
    form: forms.Form
    strict: bool = False
    rejects: Path | None = None
    given: dict[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    _kept: dict[str, IO[bytes]] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse, before anything is planned, what can be known to be wrong by then."""
        if STDIN in self.urls:
            self.urls, self.files = tuple(url for url in self.urls if url != STDIN), (*self.files, STDIN)
        if not self.urls and not self.files:
            raise click.UsageError("Give at least one URL, or -i FILE. See --help for examples.")
        if len(self.urls) > 1 and self.given.get("sha256"):
            raise click.UsageError("--sha256 names one file; with several URLs use a CSV or JSONL file.")
        if self.rejects is not None and (self.urls or len(self.files) != 1):
            raise click.UsageError("--rejects keeps what is bad in one -i FILE, as it stands there; give just that.")
        for file in self.files:
            if _is_regular(file):
                self._head(file)

    def _head(self, file: str) -> None:
        try:
            with open(file, "rb") as stream:
                self.form.read(lines(unpacked(Counted(stream))), file)
        except InvalidInput as error:
            raise self.refused(file, error) from None
        except (OSError, ValueError) as error:
            raise _unreadable(file, error) from None

    @staticmethod
    def refused(file: str, error: InvalidInput) -> InvalidInput:
        return InvalidInput(f"{called(file)}: {error.message}", code=error.code, hint=error.hint)

    @property
    def bytes_total(self) -> int | None:
        """How long the files are as they lie there, when that is known of all."""
        try:
            return sum(os.stat(file).st_size for file in self.files) if all(map(_is_regular, self.files)) else None
        except OSError:
            return None

    def entries(self) -> Iterator[Entry]:
        """Every request there is; in a strict plan they are read twice."""
        self.bytes_read = 0
        for number, url in enumerate(self.urls, start=1):
            yield Entry({**self.given, "url": url}, line=number, raw=os.fsencode(url))
        for file in self.files:
            yield from self._of_file(file)

    def _of_file(self, file: str) -> Iterator[Entry]:
        before = self.bytes_read
        try:
            with self._opened(file) as stream:
                counted = Counted(stream)
                for read in self.form.read(lines(unpacked(counted)), file):
                    self.bytes_read = before + counted.taken
                    yield Entry({**self.given, **read.fields}, file, read.line, read.raw, read.bad, read.header)
        except InvalidInput as error:
            yield Entry({}, file, bad=error)
        except OSError as error:
            raise _unreadable(file, error) from None

    @contextlib.contextmanager
    def _opened(self, file: str) -> Iterator[IO[bytes]]:
        if file not in self._kept and (not self.strict or _is_regular(file)):
            with _stream(file) as stream:
                yield stream
            return
        # A pipe can be read once, and a strict plan reads twice.
        if file not in self._kept:
            kept = tempfile.TemporaryFile(prefix="dlpipe-")  # noqa: SIM115 - the second reading needs it open
            with _stream(file) as stream:
                shutil.copyfileobj(stream, kept)
            self._kept[file] = kept
        self._kept[file].seek(0)
        yield self._kept[file]

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()


def inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that `fetch` and `plan` share; the command is given them as one `Inputs`."""

    def collected(
        *, urls: tuple[str, ...], files: tuple[str, ...], format_: str, delimiter: str | None, maps: tuple[str, ...],
        ignore_unknown: bool, strict: bool, rejects: Path | None, **others: Any,
    ) -> Any:  # fmt: skip
        columns = Columns.parse(maps, _fields(), ignore_unknown=ignore_unknown)
        if maps and format_ == "text":
            raise click.UsageError("--map is for CSV and JSONL; a text file holds a URL a line, and nothing else.")
        common = {name: value for name in _COMMON if (value := others.pop(name)) is not None}
        wanted = Inputs(urls, files, forms.Form(columns, format_, delimiter), strict, rejects, common)
        return command(wanted=wanted, **others)

    made: Callable[..., Any] = update_wrapper(collected, command)
    for add in reversed(
        (
            click.argument("urls", nargs=-1, metavar="[URL]..."),
            click.option(
                "-i", "--input", "files", multiple=True, metavar="FILE", type=click.Path(allow_dash=True),
                help="Read requests from FILE (- is standard input): a URL a line, CSV with a header, or JSONL; "
                "UTF-8, also gzip, bzip2 or xz.",
            ),
            click.option("--format", "format_", type=click.Choice(forms.FORMATS), default="auto",
                         help="How FILE is written; auto goes by its ending and first line."),
            click.option("--delimiter", metavar="CHARACTER", callback=delimiter_known,
                         help="What parts the columns of a CSV; else it is seen from the header (, ; tab or |)."),
            click.option("--map", "maps", multiple=True, metavar="FIELD=COLUMN",
                         help="Take FIELD from COLUMN (CSV) or from the name COLUMN (JSONL); may be repeated."),
            click.option("--ignore-unknown", is_flag=True, help="Leave out columns and names that are no fields."),
            click.option("--strict", is_flag=True, help="Plan nothing when one request is bad; all are checked first."),
            click.option("--rejects", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                         help="Write the bad lines with their reasons to a new FILE, to be mended and planned again."),
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
        made = add(made)
    return made


def delimiter_known(_: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value not in forms.DELIMITERS and len(value) != 1:
        raise click.UsageError(f"--delimiter is one character, or one of: {', '.join(forms.DELIMITERS)}.")
    return value


_COMMON = (
    "work_id", "artifact_id", "tenant_id", "project_id", "sha256", "media_type", "max_bytes", "ext", "priority",
    "request_id",
)  # fmt: skip


def _fields() -> frozenset[str]:
    from dlpipe.pipeline.planner import REFRESH, SPEC_FIELDS

    return SPEC_FIELDS | {REFRESH}


def called(file: str) -> str:
    return "standard input" if file == STDIN else file


def _is_regular(file: str) -> bool:
    """A pipe is not opened before its turn, since it can be opened once only."""
    if file == STDIN:
        if sys.stdin is None:
            raise click.UsageError("Standard input is closed; give a file with -i FILE.")
        return False
    try:
        mode = os.stat(file).st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    if stat.S_ISDIR(mode) or not os.access(file, os.R_OK):
        raise click.UsageError(f"{file} is not a file that can be read.")
    return stat.S_ISREG(mode)


def _unreadable(file: str, error: Exception) -> click.UsageError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return click.UsageError(f"{called(file)} is not a file that can be read: {reason}.")


@contextlib.contextmanager
def _stream(file: str) -> Iterator[IO[bytes]]:
    if file == STDIN:
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as stream:
            yield stream
