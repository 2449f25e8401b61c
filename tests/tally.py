"""Which engines each integration test ran on, so that none counts for engines that it never saw.

Of ledger, broker and store each test says for itself: it takes that of the run by asking for a fixture of `TAKEN_BY`;
or it keeps its own, with the reason, by `own_engines("why", "broker")`; or it does without, by `no_engines("broker")`.
Without names both marks mean all three. A test that leaves one open, or says two things of one, ends the collection.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.engines import DIMENSIONS, ORDINARY, TAKEN_BY, Choice, chosen

FOLDER = Path(__file__).parent / "integration"
_KEY = "engines"
_NONE, _OWN = "none", "own: "


@dataclass(frozen=True)
class Contradiction(Exception):
    test: str
    dimension: str
    said: tuple[str, ...]

    def __str__(self) -> str:
        if not self.said:
            return f"{self.test} does not say on which {self.dimension} it runs"
        return f"{self.test} says of its {self.dimension}: {' and '.join(self.said)}"


def answers(item: pytest.Item) -> dict[str, str]:
    """For each dimension: the engine of the run that the test takes, why it has its own, or that it has none."""
    said: dict[str, set[str]] = {name: set() for name in DIMENSIONS}
    choice = _choice(item)
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in TAKEN_BY:
            name = TAKEN_BY[fixture]
            said[name].add(_turn(item, fixture) or asdict(choice)[name])
    said = {name: {" and ".join(sorted(found))} if found else set() for name, found in said.items()}
    # A test's own mark says more than that of its module, so the nearest one of each dimension counts.
    marked: dict[str, str] = {}
    for mark in item.iter_markers():
        if mark.name == "own_engines":
            why, *names = mark.args
            for name in names or DIMENSIONS:
                marked.setdefault(name, _OWN + why)
        elif mark.name == "no_engines":
            for name in mark.args or DIMENSIONS:
                marked.setdefault(name, _NONE)
    for name, what in marked.items():
        said[name].add(what)
    for name, found in said.items():
        if len(found) != 1:
            raise Contradiction(item.nodeid, name, tuple(sorted(found)))
    return {name: found.pop() for name, found in said.items()}


def _choice(item: pytest.Item) -> Choice:
    callspec = getattr(item, "callspec", None)
    made: Choice | None = callspec.params.get("choice") if callspec else None
    return made or chosen(item.config) or ORDINARY


def _turn(item: pytest.Item, fixture: str) -> str | None:
    """The ledger of a test that runs on one after the other."""
    callspec = getattr(item, "callspec", None)
    found: str | None = callspec.params.get(fixture) if callspec else None
    return found


class Tally:
    """Counts what came of the tests in `tests/integration`, and says it at the end of a run that chose its engines."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ended: dict[str, tuple[str, dict[str, str]]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wrong = []
        for item in items:
            if FOLDER in item.path.parents:
                try:
                    item.user_properties.append((_KEY, answers(item)))
                except Contradiction as error:
                    wrong.append(str(error))
        if wrong:
            raise pytest.UsageError("\n".join(["tests/tally.py says how to answer:", *wrong]))
        if asked := self._config.getoption("--taking"):
            gone = [item for item in items if not _takes(item, asked)]
            items[:] = [item for item in items if _takes(item, asked)]
            self._config.hook.pytest_deselected(items=gone)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties).get(_KEY)
        if isinstance(said, dict) and (report.when == "call" or report.outcome != "passed"):
            before = self._ended.get(report.nodeid)
            outcome = "failed" if before and before[0] == "failed" else report.outcome
            self._ended[report.nodeid] = (outcome, said)

    def figures(self) -> dict[str, dict[str, int]]:
        """Of each dimension: how many tests had which engine, or why another one, by how they ended."""
        found = {name: Counter(said[name] for _, said in self._ended.values()) for name in DIMENSIONS}
        return {name: dict(counts) for name, counts in found.items()}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        choice = chosen(self._config)
        if choice is None or not self._ended:
            return
        terminalreporter.section(f"engines: {choice.ledger}, {choice.broker}, {choice.store}")
        for line in lines(self.figures()):
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        file = self._config.getoption("--engines-report")
        if not file or hasattr(self._config, "workerinput"):
            return
        ends = Counter(outcome for outcome, _ in self._ended.values())
        none_of_it = Counter(apart(said) for _, said in self._ended.values())
        report = {"status": int(exitstatus), "ends": ends, "own": none_of_it["own"], "none": none_of_it["none"]}
        Path(file).write_text(json.dumps({**report, "engines": self.figures()}))


def _takes(item: pytest.Item, dimension: str) -> bool:
    said = dict(item.user_properties).get(_KEY)
    return isinstance(said, dict) and not said[dimension].startswith((_OWN, _NONE))


def apart(said: Mapping[str, str]) -> str | None:
    """Whether a test had nothing of the run's engines: "own" or "none"."""
    if all(what == _NONE for what in said.values()):
        return "none"
    return "own" if all(what.startswith((_OWN, _NONE)) for what in said.values()) else None


def lines(figures: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """What took part in how many tests, and why others kept what they have."""
    for name, counts in figures.items():
        taken = {what: n for what, n in counts.items() if not what.startswith((_OWN, _NONE))}
        own = {what.removeprefix(_OWN): n for what, n in counts.items() if what.startswith(_OWN)}
        on = ", ".join(f"{n} on {what}" for what, n in sorted(taken.items())) or "0 on it"
        yield f"{name:7} {on}; {sum(own.values())} keep their own; {counts.get(_NONE, 0)} have none"
        for why, n in sorted(own.items(), key=lambda one: (-one[1], one[0])):
            yield f"        {n:4} {why}"
