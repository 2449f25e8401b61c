"""Transactions that the database ended in favour of others, deadlocks above all, are carried out again here (ADR 35).

Of such an end, and of no other failure, it is certain that nothing was recorded. A `with` block cannot be entered
again, so who wants this hands its transaction over as a function, which must touch nothing but its unit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from dlpipe.core.errors import LedgerConflict
from dlpipe.core.ports import Database, Ending, Unit

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.02


def settle_alone(database: Database, ending: Ending) -> bool:
    """An ending that nothing else has to be committed with; as above."""

    def tried() -> bool:
        with database.single() as endings:
            return endings.end(ending)

    return _until_it_is(tried)


def settle(database: Database, work: Callable[[Unit], T]) -> T:
    """What `work` answers, once a unit with it is committed; LedgerConflict when it never was."""

    def tried() -> T:
        with database.write() as unit:
            return work(unit)

    return _until_it_is(tried)


def _until_it_is(tried: Callable[[], T]) -> T:
    for times in range(1, TRIES):
        try:
            return tried()
        except LedgerConflict:
            # Two that meet again at once would meet again; so each waits for a time of its own.
            time.sleep(random.uniform(0, PAUSE_S * 2**times))
    return tried()
