"""The page of a day's work says what the commands say."""

from __future__ import annotations

import pytest

from tests.e2e.day import PAGE, a_day, blocks, plain

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_day_goes_as_it_is_told() -> None:
    stands_for: dict[str, str] = {}
    steps = 0
    with a_day() as day:
        for block in blocks(PAGE.read_text(encoding="utf-8")):
            for step, said in zip(block.steps, day.play(block), strict=True):
                (told, ids), (today, ids_today) = plain(step.said), plain(said)
                assert today == told, f"$ {step.command}\n{said}"
                for one, its in zip(ids, ids_today, strict=True):
                    assert stands_for.setdefault(one, its) == its, f"{one} is two jobs today:\n{said}"
                steps += 1
    assert steps > 20, "the page has lost its transcript"
