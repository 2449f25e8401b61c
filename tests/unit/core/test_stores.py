"""An empty or strange place is not taken for the store, however few rows there are (HEAL-3, ADR 29)."""

from __future__ import annotations

import pytest

from dlpipe.core import stores
from dlpipe.core.stores import DOUBTFUL, FOREIGN, NOT_MOUNTED, Known, Mark, NeedLook, Record


@pytest.mark.parametrize(
    ("recorded", "found", "believed", "verdict"),
    [
        ("a", "a", None, Known()),
        ("a", None, None, NOT_MOUNTED),  # an empty mount point
        ("a", None, True, NOT_MOUNTED),  # also before anything is registered: what is written there would vanish
        ("a", "b", None, FOREIGN),
        ("a", "", None, FOREIGN),  # a mark that cannot be read is nobody's
        (None, None, None, NeedLook()),
        (None, "b", None, NeedLook()),
        (None, None, True, Mark()),  # new, or from before there were marks
        (None, "b", True, Record()),  # marked by one who died before he could record it
        (None, None, False, DOUBTFUL),
        (None, "b", False, DOUBTFUL),
    ],
)
def test_which_store_is_this_ledgers(
    recorded: str | None, found: str | None, believed: bool | None, verdict: object
) -> None:
    assert stores.recognise(recorded, found, believed) == verdict


@pytest.mark.parametrize("refused", [NOT_MOUNTED, FOREIGN, DOUBTFUL])
def test_a_refusal_says_what_to_do_and_costs_no_attempt(refused: stores.Refused) -> None:
    failure = refused.failure()
    assert failure.after_s > 0
    assert "DLPIPE_STORE_ROOT" in failure.hint
    assert "--accept-store" in failure.hint
