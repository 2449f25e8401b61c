"""No integration test counts for an engine that it never saw: the rules of tests/tally.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.engines import ORDINARY, PRODUCTION, Choice
from tests.pairs import HEADS, row, table
from tests.tally import Contradiction, answers, apart, lines


@dataclass
class Asked:
    """As much of a collected test as the rules look at."""

    fixturenames: tuple[str, ...] = ()
    marks: tuple[pytest.MarkDecorator, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    nodeid: str = "test_x.py::test_x"

    @property
    def callspec(self) -> SimpleNamespace:
        return SimpleNamespace(params=self.params)

    @property
    def config(self) -> SimpleNamespace:
        return SimpleNamespace(getoption=self.options.get)

    def iter_markers(self) -> list[pytest.Mark]:
        """The nearest first."""
        return [mark.mark for mark in self.marks]

    def answers(self) -> dict[str, str]:
        return answers(cast("pytest.Item", self))


own, none = pytest.mark.own_engines, pytest.mark.no_engines
ALL = ("ledger_url", "broker_settings", "shelf")
CHOSEN = {"--ledger": "postgresql", "--broker": "rabbitmq"}


def test_who_asks_for_all_runs_on_what_the_run_chose() -> None:
    assert Asked(ALL).answers() == {"ledger": "sqlite", "broker": "redis", "store": "local"}
    assert Asked(ALL, options=CHOSEN).answers() == {"ledger": "postgresql", "broker": "rabbitmq", "store": "local"}


def test_a_turn_of_its_own_counts_as_that_engine() -> None:
    """As tests have that are marked `everywhere`, and those that run on one ledger after the other."""
    on_production = {"ledger": "postgresql", "broker": "rabbitmq", "store": "s3"}
    assert Asked(ALL, params={"choice": PRODUCTION}).answers() == on_production
    assert Asked(ALL, params={"choice": ORDINARY}).answers() == Asked(ALL).answers()
    turn = Asked(("database_url",), (none("broker", "store"),), {"database_url": "postgresql"})
    assert turn.answers()["ledger"] == "postgresql"


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        (Asked(), "ledger"),
        (Asked(("ledger_url", "shelf")), "broker"),
        (Asked(("ledger_url",), (none("broker"),)), "store"),
        (Asked(ALL, (own("why", "broker"),)), "says of its broker: own: why and redis"),
        (Asked(ALL, (none("store"),)), "says of its store"),
    ],
    ids=["nothing said", "broker open", "store open", "takes it and has its own", "takes it and has none"],
)
def test_who_leaves_one_open_or_says_two_things_is_refused(asked: Asked, about: str) -> None:
    with pytest.raises(Contradiction, match=about):
        asked.answers()


def test_the_nearest_mark_counts_and_without_names_means_all() -> None:
    of_module = own("servers of its own")
    assert set(Asked(marks=(of_module,)).answers().values()) == {"own: servers of its own"}
    nearer = Asked(marks=(none("store"), of_module)).answers()
    assert nearer == {"ledger": "own: servers of its own", "broker": "own: servers of its own", "store": "none"}


def test_only_who_took_something_counts_for_the_run() -> None:
    assert apart(Asked(marks=(none(),)).answers()) == "none"
    assert apart(Asked(marks=(own("why"),)).answers()) == "own"
    assert apart(Asked(marks=(own("why", "ledger"), none())).answers()) == "own"
    assert apart(Asked(("ledger_url",), (none("broker", "store"),)).answers()) is None


def test_the_list_says_who_took_what_and_why_others_did_not() -> None:
    told = list(lines({"broker": {"rabbitmq": 3, "own: it is about Redis": 2, "own: other": 4, "none": 5}}))
    assert told == [
        "broker  3 on rabbitmq; 6 keep their own; 5 have none",
        "           4 other",
        "           2 it is about Redis",
    ]


def test_what_no_option_names_stays_as_it_is() -> None:
    assert Choice("postgresql") == Choice("postgresql", "redis", "local")


def test_the_table_of_all_pairs_counts_only_what_ran_on_the_engine_of_its_row() -> None:
    choice = Choice("postgresql", "rabbitmq", "local")
    found = {
        "ends": {"passed": 7, "failed": 1}, "own": 2, "none": 3,
        "engines": {"ledger": {"postgresql": 5, "own: why": 3}, "broker": {"redis": 4}, "store": {"local": 6}},
    }  # fmt: skip
    cells = dict(zip(HEADS, row(choice, found), strict=True))
    assert cells == {
        "ledger": "postgresql", "broker": "rabbitmq", "store": "local", "passed": "7", "failed": "1", "skipped": "0",
        "own": "2", "none": "3", "on ledger": "5", "on broker": "0", "on store": "6",
    }  # fmt: skip
    assert "no end" in table([row(choice, None)])
