"""How long to wait: bounded, never less than was asked for, and no header makes it fail (HUB-2)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlpipe.core.retries import RetryPolicy, backoff_s, next_delay_s, retry_after_s

POLICY = RetryPolicy(max_attempts=5, base_s=2.0, cap_s=300.0, server_cap_s=3600.0)
NOW = 784_111_777.0  # 1994-11-06 08:49:37 UTC

attempts = st.integers(0, 10_000)
chances = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempt", "chance", "delay"),
    [
        (0, 0.5, 1.0),
        (1, 0.5, 2.0),
        (3, 0.25, 4.0),
        (7, 0.5, 128.0),
        (8, 0.5, 150.0),  # the cap
        (10_000, 0.5, 150.0),  # and no overflow
        (5, 0.0, 0.0),  # full jitter goes down to nothing
    ],
)
def test_backoff_doubles_up_to_the_cap(attempt: int, chance: float, delay: float) -> None:
    assert backoff_s(attempt, chance, POLICY) == delay


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        (None, 1.0),
        (0.0, 1.0),  # our own backoff is never undercut
        (0.5, 1.0),
        (90.0, 90.0),
        (86_400.0, 3600.0),  # nor does a server park a job for a day
        (float("inf"), 3600.0),
        (-5.0, 1.0),
    ],
)
def test_what_the_server_asks_for_counts_within_bounds(asked: float | None, delay: float) -> None:
    assert next_delay_s(0, 0.5, asked, POLICY) == delay


@given(attempts, chances, st.none() | st.floats(allow_nan=False))
def test_every_delay_is_within_bounds(attempt: int, chance: float, asked: float | None) -> None:
    delay = next_delay_s(attempt, chance, asked, POLICY)
    assert 0 <= delay <= max(POLICY.cap_s, POLICY.server_cap_s)
    if asked is not None:
        assert delay >= min(asked, POLICY.server_cap_s)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a machine in another time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 120\t", 120.0),
        ("0", 0.0),
        ("007", 7.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),  # RFC 850, obsolete, still to be read
        ("Sun Nov  6 08:50:37 1994", 60.0),  # asctime, obsolete, and it is UTC
        ("Sun, 06 Nov 1994 08:50:37 -0000", 60.0),
        ("Sun, 06 Nov 1994 09:50:37 +0100", 60.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),  # in the past
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("1e9", None),
        ("٣", None),  # another script's digit
        ("soon", None),
        ("Sun, 06 Nov", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 +99999999999999", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


def test_absurd_numbers_stay_finite() -> None:
    found = retry_after_s("9" * 5000, NOW)
    assert found is not None
    assert found < float("inf")


days = st.sampled_from(["", "Sun, ", "Sunday, "])
months = st.sampled_from(["Nov", "Foo", "", "11"])


@given(
    st.text(max_size=40)
    | st.builds(
        "{}{} {} {} {}:{}:{} {}".format, days, *[st.integers()], months, *[st.integers()] * 4, st.text(max_size=9)
    )
)
@example("Mon, 01 Jan 0001 00:00:00 +2359")
def test_no_header_makes_the_reading_fail(text: str) -> None:
    found = retry_after_s(text, NOW)
    assert found is None or found >= 0
