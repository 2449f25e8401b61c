"""The page of a day's work says what the commands say."""

from __future__ import annotations

import pytest

from tests.e2e.day import PAGE, Ids, a_day, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_day_goes_as_it_is_told() -> None:
    told, today = Ids(), Ids()
    steps = 0
    with a_day() as day:
        for block in blocks(PAGE.read_text(encoding="utf-8")):
            for step, said in zip(block.steps, day.play(block), strict=True):
                assert today.plain(said) == told.plain(step.said), f"$ {step.command}\n{said}"
                steps += 1
    assert steps > 20, "the page has lost its transcript"
