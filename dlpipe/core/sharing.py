"""How tenants share the room that dispatch has (HEAL-1): whoever has least in flight comes next."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def shares(room: int, in_flight: Mapping[str, int]) -> dict[str, int]:
    """How many further jobs each tenant may send; among equals the order of `in_flight` decides.

    So a tenant with a million jobs gets what the others leave, and one with ten gets them out at once.
    """
    turns = [(count, position, tenant) for position, (tenant, count) in enumerate(in_flight.items())]
    heapq.heapify(turns)
    given: dict[str, int] = {}
    for _ in range(room if turns else 0):
        count, position, tenant = turns[0]
        given[tenant] = given.get(tenant, 0) + 1
        heapq.heapreplace(turns, (count + 1, position, tenant))
    return given
