"""Bad lines, kept as they stand in their file, each under a comment with its reason: mend them and plan that file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import click

from dlpipe.cli import output
from dlpipe.cli.forms import MARK
from dlpipe.cli.inputs import Entry
from dlpipe.pipeline.planner import Refusal


class Rejects(Protocol):
    def add(self, entry: Entry, refusal: Refusal) -> None: ...


class _Nowhere:
    def add(self, entry: Entry, refusal: Refusal) -> None: ...


NOWHERE = _Nowhere()


class _File:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.count = 0

    def add(self, entry: Entry, refusal: Refusal) -> None:
        if not self.count:
            self._stream.write(_whole(entry.header))
        self.count += 1
        left_out = "" if entry.raw else "; the line is not repeated here"
        reason = f"{MARK} {entry.where}: {refusal.message} [{refusal.code}] {refusal.hint}{left_out}"
        self._stream.write(output.safe(reason).encode(errors="backslashreplace") + b"\n" + _whole(entry.raw))
        self._stream.flush()


@contextlib.contextmanager
def rejects(file: Path | None) -> Iterator[Rejects]:
    """Where bad lines go: a new file, which is gone again when there were none."""
    if file is None:
        yield NOWHERE
        return
    try:
        # Request URLs in it can hold secrets.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{file} is there already; name another file for --rejects, or remove it.") from None
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written for --rejects: {error.strerror}.") from None
    with open(handle, "wb") as stream:
        made = _File(stream)
        try:
            yield made
        finally:
            if made.count:
                output.note(f"the bad lines are in {file}; mend them there, then plan it with -i")
            else:
                file.unlink(missing_ok=True)


def _whole(raw: bytes) -> bytes:
    return raw if not raw or raw.endswith(b"\n") else raw + b"\n"
