"""What `dlpipe fetch` says of jobs that wait, a line each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlpipe.cli.progress import _Lines
from dlpipe.core.model import JobView, Scope
from dlpipe.core.states import State, Status

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = JobView(
    job_id="J", scope=Scope(), job_type="artifact_download", status=Status.PENDING, progress=0, state=State.PLANNED,
    work_id="w", artifact_id="a", url="https://e.org/a?token=hunter2", run=1, attempts=0, created_at=LONG_AGO,
    updated_at=LONG_AGO, completed_at=None, failed_at=None, due_at=None, request_id=None,
    error_code="retry_after", error_message_safe="https://e.org answers that it is too busy", error_debug_id=None,
    host="e.org",
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "lines"),
    [("retry_after", 2), ("host_cooling_down", 2), ("host_busy", 1), ("http_5xx", 1)],
)
def test_a_wait_is_told_once_and_again_when_its_server_puts_it_off_further(
    capsys: pytest.CaptureFixture[str], code: str, lines: int
) -> None:
    display, tomorrow = _Lines(1, 0), datetime.now(UTC) + timedelta(days=1)
    for later_s in (0, 0, 240, 240):
        display.going(replace(JOB, error_code=code, due_at=tomorrow + timedelta(seconds=later_s)))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    assert told[0].startswith("waiting until ")
    assert told[0].endswith(f"e.org/a?token=REDACTED: {JOB.error_message_safe} [{code}]")
