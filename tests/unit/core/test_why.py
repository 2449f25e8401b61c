"""Every situation of a job has its paragraph, and each paragraph says what happens next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dlpipe
from dlpipe.core import stores
from dlpipe.core.model import JobView, Scope
from dlpipe.core.nodes import Stand
from dlpipe.core.states import Purpose, State, Status, is_terminal, status_of
from dlpipe.core.torrents import DownloadStatus
from dlpipe.core.why import POSTPONED, Situation, Standing, Surroundings, explain

ENDS = (Situation.COMPLETED, Situation.SKIPPED, Situation.FAILED, Situation.CANCELED)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON, AGO = NOW + timedelta(minutes=5), NOW - timedelta(seconds=5)
LONG_AGO = NOW - timedelta(hours=3)
JOB = JobView(
    job_id="J", scope=Scope(), job_type="artifact_download", status=Status.PENDING, progress=0, state=State.PLANNED,
    work_id="w", artifact_id="a", url="https://e.org/a", run=0, attempts=0, created_at=LONG_AGO, updated_at=AGO,
    completed_at=None, failed_at=None, due_at=AGO, request_id=None, error_code=None, error_message_safe=None,
    error_debug_id=None, host="e.org",
)  # fmt: skip
ERROR = {"error_code": "http_503", "error_message_safe": "the server answered 503", "error_debug_id": "d1"}
FREE = Surroundings(max_attempts=5)

CASES: list[tuple[Situation, dict[str, Any], dict[str, Any], Surroundings, list[str]]] = [
    (Situation.COMPLETED, {"status": "completed", "completed_at": AGO, "artifacts": ("u1",)}, {}, FREE,
     ["done since 2026-01-02 03:04:00 UTC", "artifact u1", "dlpipe refresh"]),
    (Situation.COMPLETED, {"status": "completed", "artifacts": ("u1", "u2")}, {}, FREE, ["2 artifacts, the newest u2"]),
    (Situation.SKIPPED, {"status": "skipped", "artifacts": ("u1",)}, {}, FREE, ["without fetching", "dlpipe refresh"]),
    (Situation.COMPLETED, {"status": "completed", "artifacts": ("u1",), "run": 2, "withdrawn_run": 2}, {}, FREE,
     ["registered as artifact u1", "(run 2) was canceled on 2026-01-02 03:04:00 UTC", "dlpipe refresh"]),
    (Situation.SKIPPED, {"status": "skipped", "artifacts": ("u1",), "run": 2, "withdrawn_run": 2}, {}, FREE,
     ["(run 2) was canceled"]),
    (Situation.FAILED, {"status": "failed", "failed_at": AGO, **ERROR}, {}, FREE,
     ["for good", "the server answered 503 [http_503] (debug id d1)", "dlpipe retry J"]),
    (Situation.CANCELED, {"status": "canceled"}, {}, FREE, ["was canceled", "another artifact id"]),
    (Situation.PAUSED, {"paused_at": AGO}, {}, FREE, ["paused since", "dlpipe resume J", "no attempt"]),
    (Situation.PAUSED, {"paused_at": AGO, "due_at": SOON, **ERROR}, {}, FREE, ["dlpipe resume J"]),
    (Situation.RUNNING, {"run": 2, "state": State.STREAMING, "due_at": None}, {"lease_until": SOON},
     replace(FREE, done_bytes=7000, total_bytes=9000),
     ["run 2, at STREAMING, 7,000 of 9,000 bytes (77 %) so far", "nothing is to be done"]),
    (Situation.RUNNING, {"state": State.STREAMING, "due_at": None}, {"lease_until": SOON, "published_at": LONG_AGO},
     replace(FREE, done_bytes=7), ["7 bytes so far"]),
    (Situation.HOLDER_GONE, {"state": State.STREAMING, "due_at": None}, {"lease_until": LONG_AGO}, FREE,
     ["no sign for 3 hours", "Reconcile", "goes on from the bytes"]),
    (Situation.HOLDER_GONE, {"state": State.STREAMING, "due_at": None, "attempts": 4}, {"lease_until": AGO}, FREE,
     ["no sign for 5 seconds", "used up"]),
    (Situation.NOT_BEFORE, {"due_at": SOON}, {}, FREE, ["not to begin before 2026-01-02 03:09:05 UTC", "by itself"]),
    (Situation.POSTPONED, {"due_at": SOON, **ERROR, "error_code": "host_circuit_open"}, {}, FREE,
     ["e.org has failed again and again", "no attempt was used up"]),
    (Situation.POSTPONED, {"due_at": SOON, **ERROR, "error_code": "quota_exceeded"}, {}, FREE, ["too little room"]),
    (Situation.POSTPONED, {"due_at": SOON, **ERROR, "error_code": "retry_after"}, {}, FREE,
     ["e.org answers that it is too busy for this address; its other files go on", "no attempt was used up",
      "the next wait is longer"]),
    (Situation.POSTPONED, {"due_at": SOON, **ERROR, "error_code": "host_cooling_down"}, {},
     replace(FREE, origin="https://e.org:8443"), ["https://e.org:8443 answers for several addresses", "is left alone"]),
    (Situation.WAITS_FOR_RETRY, {"due_at": SOON, "attempts": 2, "state": State.FAILED, **ERROR}, {}, FREE,
     ["Attempt 2 of 5 failed: the server answered 503", "03:09:05", "3 are left"]),
    (Situation.WAITS_FOR_RETRY, {"due_at": SOON, "attempts": 4, "state": State.FAILED, **ERROR}, {}, FREE,
     ["it is the last one"]),
    (Situation.HOST_FULL, {}, {}, replace(FREE, host_full=True, window_full=True), ["e.org has its share"]),
    (Situation.WINDOW_FULL, {}, {}, replace(FREE, window_full=True), ["as many jobs", "higher priority first"]),
    (Situation.DUE, {}, {}, FREE, ["due and not sent yet", "within seconds"]),
    (Situation.DUE, {"state": State.FAILED, **ERROR}, {}, FREE, ["due and not sent yet"]),
    (Situation.DUE, {"state": State.DEDUPED, "purpose": Purpose.REFRESH}, {}, FREE, ["ask the server whether"]),
    (Situation.DUE, {"state": State.DEDUPED, "purpose": Purpose.REPLAY}, {}, FREE, ["without the network"]),
    (Situation.DUE, {"state": State.DEDUPED, "purpose": Purpose.REPAIR}, {}, FREE, ["missing or damaged"]),
    (Situation.SENT, {}, {"published_at": AGO}, replace(FREE, host_full=True), ["sent 5 seconds ago", "free worker"]),
    (Situation.MESSAGE_LATE, {}, {"published_at": LONG_AGO}, FREE, ["3 hours ago", "dlpipe status", "by itself"]),
    (Situation.NEXT_STAGE, {"run": 1, "state": State.HEAD_DONE, "due_at": None}, {"published_at": AGO}, FREE,
     ["Run 1 has come as far as HEAD_DONE", "free"]),
    *((Situation.NODE_SILENT, {"run": 1, "state": State.RESUME_OK, "due_at": None}, {"published_at": LONG_AGO},
       replace(FREE, node=node), ["as far as RESUME_OK", "not heard", "dlpipe nodes"])
      for node in (Stand.SILENT, Stand.GONE)),
    (Situation.MESSAGE_LATE, {"run": 1, "state": State.RESUME_OK, "due_at": None}, {"published_at": LONG_AGO},
     replace(FREE, node=Stand.DRAINING), ["dlpipe status"]),
    (Situation.ADRIFT, {"run": 1, "state": State.HEAD_DONE, "due_at": None}, {}, FREE, ["should not be"]),
    (Situation.TORRENT_QUEUED, {"state": DownloadStatus.QUEUED, **ERROR}, {}, FREE, ["handed to qBittorrent", "503"]),
    (Situation.TORRENT_RUNNING, {"state": DownloadStatus.DOWNLOADING, "progress": 7}, {}, FREE, ["7 % of it"]),
    (Situation.FAILED, {"state": DownloadStatus.FAILED, "status": "failed", **ERROR}, {}, FREE, ["start the download"]),
]  # fmt: skip


def standing(view: dict[str, Any], row: dict[str, Any]) -> Standing:
    return Standing(replace(JOB, **{**view, "status": Status(view.get("status", "pending"))}), NOW, **row)


def test_a_job_that_waits_is_told_with_what_for_where_and_until_when() -> None:
    around = replace(FREE, origin="https://e.org:8443")
    for code in (*POSTPONED, "http_503", None):
        why = explain(standing({"due_at": SOON, **ERROR, "error_code": code}, {}), around)
        assert (why.code, why.origin, why.until) == (code, "https://e.org:8443", SOON)
    at_work = explain(standing({"due_at": None, **ERROR}, {"lease_until": SOON}), around)
    assert (at_work.code, at_work.origin, at_work.until) == (None, None, None)


@pytest.mark.parametrize(("situation", "view", "row", "around", "words"), CASES)
def test_each_situation_is_told_with_its_reason_and_what_follows(
    situation: Situation, view: dict[str, Any], row: dict[str, Any], around: Surroundings, words: list[str]
) -> None:
    why = explain(standing(view, row), around)
    assert why.situation is situation
    assert [word for word in words if word not in why.text] == []
    assert why.text.endswith(".")
    assert "None" not in why.text


@pytest.mark.parametrize(("situation", "view", "row", "around", "words"), CASES)
def test_where_nobody_works_nothing_is_promised(
    situation: Situation, view: dict[str, Any], row: dict[str, Any], around: Surroundings, words: list[str]
) -> None:
    busy, idle = explain(standing(view, row), around), explain(standing(view, row), replace(around, idle=True))
    if situation.startswith("torrent") or situation in (*ENDS, Situation.PAUSED):
        assert idle == busy
    else:
        assert "Nothing runs here now" in idle.next
        assert "dlpipe up" in idle.next
        assert idle.situation is (Situation.HOLDER_GONE if situation is Situation.RUNNING else situation)


def test_every_wait_that_costs_no_attempt_has_its_reason() -> None:
    raised = set(_postponed_codes())
    assert {"retry_after", "host_busy", "part_busy", "no_space", "store_busy"} <= raised
    assert raised == set(POSTPONED)


def _postponed_codes() -> Iterator[str]:
    """The codes of all failures of this kind that the source makes."""
    package = Path(dlpipe.__file__).parent
    yield from (one.code for one in vars(stores).values() if isinstance(one, stores.Refused))
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Postponed"), keywords=keywords):
                    given = [one.value for one in keywords if one.arg == "code"]
                case ast.Call(func=ast.Name(id="_postponed"), args=[code, *_]):
                    given = [code]
                case ast.If(test=ast.Compare(left=ast.Name(id="code"), comparators=[code]), body=body):
                    # What is looked up by what the system says, and handed back for one of the codes.
                    given = [code] if "Postponed(" in ast.unparse(body[-1]) else []
                case _:
                    given = []
            yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_a_later_run_is_not_said_to_be_the_one_that_was_canceled() -> None:
    view = {"status": "completed", "artifacts": ("u1",), "run": 3, "withdrawn_run": 2, "state": State.DEDUPED}
    assert "canceled" not in explain(standing(view, {}), FREE).text


def test_the_table_has_every_situation() -> None:
    assert {case[0] for case in CASES} == set(Situation)


@pytest.mark.parametrize("due", [None, AGO, SOON])
@pytest.mark.parametrize("state", list(State))
def test_no_state_is_without_an_answer(state: State, due: datetime | None) -> None:
    status = status_of(state, retry_due=due is not None)
    for row in ({}, {"published_at": AGO}, {"published_at": LONG_AGO}, {"lease_until": SOON}, {"lease_until": AGO}):
        why = explain(standing({"state": state, "status": status, "due_at": due, "run": 1}, row), FREE)
        assert (why.situation in ENDS) == is_terminal(state, retry_due=due is not None)
