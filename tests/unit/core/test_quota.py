"""Room on a volume: free − reserved − need × margin ≥ floor, and only new bytes count. STREAM-7."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import quota
from dlpipe.core.quota import admit

sizes = st.integers(0, 1 << 50)


@pytest.mark.parametrize(
    ("free", "reserved", "need", "margin", "floor", "admitted"),
    [
        (100, 0, 100, 1.0, 0, True),
        (100, 0, 101, 1.0, 0, False),
        (100, 1, 100, 1.0, 0, False),
        (100, 0, 100, 1.01, 0, False),
        (150, 0, 100, 1.5, 0, True),
        (100, 0, 90, 1.0, 10, True),
        (100, 0, 90, 1.0, 11, False),
        (5, 0, 0, 1.0, 10, True),  # what needs nothing new is never refused
        (5, 0, 1, 1.0, 10, False),
        (0, 0, 1, 1.0, 0, False),
    ],
)
def test_the_rule(free: int, reserved: int, need: int, margin: float, floor: int, admitted: bool) -> None:
    found = admit(free, reserved, need, margin, floor)
    assert found == quota.Decision(admitted, free, reserved, need, margin, floor)


@given(sizes, sizes, st.integers(1, 1 << 50), st.floats(1.0, 10.0), sizes)
def test_headroom_and_admit_agree(free: int, reserved: int, need: int, margin: float, floor: int) -> None:
    """The one is asked of Redis, the other decides: if they differed, room would be promised and refused at once."""
    assert admit(free, reserved, need, margin, floor).admitted == (
        reserved <= quota.headroom(free, need, margin, floor)
    )


@pytest.mark.parametrize(
    ("total", "taken", "need"),
    [(100, 0, 100), (100, 40, 60), (100, 100, 0), (100, 130, 0), (0, 0, 0), (None, 0, 32), (None, 500, 32)],
)
def test_only_bytes_that_take_no_room_yet_are_needed(total: int | None, taken: int, need: int) -> None:
    assert quota.need(total, taken, 32) == need


def test_a_refusal_tells_the_figures_and_how_much_to_free() -> None:
    mib = 1 << 20
    refusal = admit(100 * mib, 20 * mib, 90 * mib, 1.0, 10 * mib).refusal()
    assert refusal.code == "quota_exceeded"
    for figure in ("100 MiB free", "20 MiB promised", "90 MiB needed", "10 MiB to be left"):
        assert figure in refusal.message
    assert "Free 20 MiB" in refusal.hint
