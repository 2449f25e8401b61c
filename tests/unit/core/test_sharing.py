"""How tenants share the room of dispatch (HEAL-1)."""

from __future__ import annotations

import pytest

from dlpipe.core.sharing import shares


@pytest.mark.parametrize(
    ("room", "in_flight", "given"),
    [
        (0, {"a": 0}, {}),
        (3, {}, {}),
        (3, {"a": 7}, {"a": 3}),  # alone, one gets all
        (4, {"a": 0, "b": 0}, {"a": 2, "b": 2}),
        (3, {"a": 0, "b": 0}, {"a": 2, "b": 1}),  # the odd one goes to who waits longest
        (3, {"a": 5, "b": 0}, {"b": 3}),  # who has much in flight lets others catch up
        (8, {"a": 5, "b": 0, "c": 4}, {"b": 6, "c": 1, "a": 1}),
        (2, {"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 1}),  # more tenants than room: the first in line
    ],
)
def test_who_has_least_in_flight_comes_next(room: int, in_flight: dict[str, int], given: dict[str, int]) -> None:
    assert shares(room, in_flight) == given
