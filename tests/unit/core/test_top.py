"""What is made of the facts behind `dlpipe top`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dlpipe.core.states import Status
from dlpipe.core.top import Around, AtWork, Look, OriginState, Reason, Snapshot, Waiter, picture, waiting

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON = AT + timedelta(seconds=30)
NONE = Around({}, {}, {}, window=10, per_host=3, lease_ttl_s=120.0)
WAITER = Waiter("job", "a.example", "http://a.example", AT, None, paused=False, sent=False)
AT_WORK = AtWork("job", "http://a.example/x", "a.example", "http://a.example", 1, "stream", "w.1", 100.0)


def look(**fields: Any) -> Look:
    return Look(**{"at": AT, "counts": {Status.PENDING: 1}, **fields})


def snapshot(at: datetime, done: int | None, total: int | None = 1000, run: int = 1, before: Any = None) -> Snapshot:
    progress = {} if done is None else {"job": (done, total)}
    seen = look(at=at, at_work=(replace(AT_WORK, run=run),))
    return picture("t", "p", seen, replace(NONE, progress=progress), before)


@pytest.mark.parametrize(
    ("waiter", "around", "expected", "until"),
    [
        ({}, {}, Reason.DUE, None),
        ({"paused": True, "due_at": SOON, "error_code": "host_busy"}, {}, Reason.PAUSED, None),
        ({"due_at": SOON}, {}, Reason.NOT_BEFORE, SOON),
        ({"due_at": SOON, "error_code": "host_busy"}, {}, Reason.POSTPONED, SOON),
        ({"due_at": SOON, "error_code": "http_5xx"}, {}, Reason.RETRY, SOON),
        ({"due_at": AT, "error_code": "http_5xx"}, {}, Reason.DUE, None),  # its time has come
        ({"sent": True}, {"in_flight": {"a.example": 3}}, Reason.SENT, None),
        ({}, {"in_flight": {"a.example": 3}}, Reason.HOST_FULL, None),
        ({}, {"in_flight": {"a.example": 2, "b.example": 8}}, Reason.WINDOW_FULL, None),
        ({}, {"in_flight": {"a.example": 2, "b.example": 7}}, Reason.DUE, None),
    ],
)
def test_each_waits_for_one_reason(
    waiter: dict[str, Any], around: dict[str, Any], expected: Reason, until: datetime | None
) -> None:
    (row,) = waiting([replace(WAITER, **waiter)], AT, replace(NONE, **around))
    assert (row.reason, row.until, row.jobs, row.host) == (expected, until, 1, "a.example")


def test_those_who_wait_for_the_same_are_one_row_until_the_first_of_them_goes() -> None:
    late = SOON + timedelta(minutes=5)
    dues = {"b": late, "c": SOON, "d": late}
    busy = [replace(WAITER, job_id=job_id, due_at=due, error_code="host_busy") for job_id, due in dues.items()]
    rows = waiting([WAITER, *busy, elsewhere("b.example")], AT, NONE)
    assert [(row.host, row.reason, row.code, row.jobs, row.until, row.first_job_id) for row in rows] == [
        ("a.example", Reason.POSTPONED, "host_busy", 3, SOON, "c"),
        ("a.example", Reason.DUE, None, 1, None, "job"),
        ("b.example", Reason.DUE, None, 1, None, "job"),
    ]


def test_the_same_host_at_another_port_is_a_row_of_its_own() -> None:
    other = replace(WAITER, origin="http://a.example:8080")
    origins = {other.origin: OriginState(cooling_s=3.0)}
    rows = waiting([WAITER, other], AT, replace(NONE, origins=origins))
    assert [(row.host, row.origin, row.cooling_s) for row in rows] == [
        ("a.example", "http://a.example", None),
        ("a.example", "http://a.example:8080", 3.0),
    ]


def elsewhere(host: str) -> Waiter:
    return replace(WAITER, host=host, origin=f"http://{host}")


def test_an_origin_that_may_not_be_asked_is_told_with_those_who_wait_for_it() -> None:
    origins = {"http://a.example": OriginState(open_s=12.0, cooling_s=3.0)}
    rows = waiting([WAITER, elsewhere("b.example")], AT, replace(NONE, origins=origins))
    assert [(row.circuit_open_s, row.cooling_s) for row in rows] == [(12.0, 3.0), (None, None)]


def test_a_rate_needs_two_looks_at_the_same_run() -> None:
    first = snapshot(AT, 100)
    later = AT + timedelta(seconds=2)
    assert (first.running[0].rate_bytes_s, first.rate_bytes_s) == (None, None)
    second = snapshot(later, 300, before=first)
    assert (second.running[0].rate_bytes_s, second.running[0].eta_s, second.rate_bytes_s) == (100.0, 7.0, 100.0)
    assert snapshot(later, 300, run=2, before=first).running[0].rate_bytes_s is None
    assert snapshot(later, 50, before=first).running[0].rate_bytes_s is None  # it began anew
    assert snapshot(later, None, before=first).running[0].rate_bytes_s is None
    assert snapshot(AT, 300, before=first).running[0].rate_bytes_s is None  # no time has passed
    assert snapshot(later, 300, total=None, before=first).running[0].eta_s is None
    assert snapshot(later, 100, before=first).running[0].eta_s is None  # it stands still


def test_workers_are_those_who_have_jobs_and_the_age_of_a_lease_is_since_its_renewal() -> None:
    held = (AT_WORK, replace(AT_WORK, job_id="b"), replace(AT_WORK, job_id="c", worker="w.2", lease_left_s=130.0))
    seen = picture("t", "p", look(at_work=held), replace(NONE, in_flight={"a": 2, "b": 3}), troubles=["x"])
    assert [(one.name, one.jobs) for one in seen.workers] == [("w.1", 2), ("w.2", 1)]
    assert [one.lease_age_s for one in seen.running] == [20.0, 20.0, 0.0]
    assert (seen.in_flight, seen.window, seen.troubles, seen.counts) == (5, 10, ("x",), {"pending": 1})
