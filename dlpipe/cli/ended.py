"""What came of the requests of a fetch, shown when it ends. Its memory grows with the files, not with bad lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dlpipe.cli import output
from dlpipe.core.urls import redact

SHOWN_REFUSALS = 20
"""So many are rows of the table; each was told with its reason when it was met, and the others are counted."""


class Ended:
    """Of each request its row and, where it failed, its reason. As JSON it is printed at once, and no row is kept."""

    def __init__(self, *, as_json: bool) -> None:
        self.count = 0
        self.is_bad = False
        self._as_json = as_json
        self._refused = 0
        self._rows: Counter[tuple[str, ...]] = Counter()
        self._reasons: dict[str, None] = {}

    def add(self, record: Mapping[str, Any], times: int = 1) -> None:
        """`times`: so many requests were for the same."""
        self.count += times
        if self._as_json:
            for _ in range(times):
                output.as_json(record)
        if record["status"] == "refused":
            self.is_bad = True
            self._refused += times
            if self._refused > SHOWN_REFUSALS:
                return
        elif record["status"] not in ("completed", "skipped"):
            self.is_bad = True
            code = f" [{record['error_code']}]" if record["error_code"] else ""
            why = f"{record['status']}: {redact(record['url'] or '')}: {record['error_message_safe']}{code}"
            self._reasons[why] = None
        if not self._as_json:
            self._rows[_row(record)] += times

    def show(self) -> None:
        if not self._as_json:
            rows = list(self._rows.elements())
            if self._refused > SHOWN_REFUSALS:
                rows.append(("refused", "-", "-", f"and {self._refused - SHOWN_REFUSALS} more requests"))
            output.table(["status", "size", "how", "file"], rows)
        for why in self._reasons:
            output.note(why)


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    file = record.get("out_path") or record["path"] or redact(record["url"] or "")
    return record["status"], output.size(record["byte_size"]), record["dedupe_action"] or "-", file
