"""Where the rows of purged jobs are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dlpipe.core.model import Scope
from dlpipe.core.purging import ArchiveFile


class Archive(Protocol):
    def write(self, scope: Scope, rows: Iterable[Mapping[str, Any]]) -> ArchiveFile:
        """Write a file of these rows and read it back. When this returns it is whole and lasts, under its name.

        DlpipeError when what is read back is not what was written; then there is no file of that name. One that dies
        on the way leaves a temporary file at most, which the next one clears away.
        """
