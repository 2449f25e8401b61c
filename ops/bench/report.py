"""The page with the latest figures, and the same as JSON. A run replaces the rows of its own groups and no others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench import table
from ops.bench.options import GROUPS
from ops.bench.table import Row

MARKER = "<!-- written by: make bench -->"


@dataclass(frozen=True, slots=True)
class Measured:
    """One group as one run has measured it."""

    group: str
    rows: tuple[Row, ...]
    at: str
    how: str
    """Rounds and sizes."""
    trial: bool
    load: tuple[float, float]
    """Before and after."""
    environment: str


def as_json(measured: Measured) -> dict[str, Any]:
    return {
        "group": measured.group, "at": measured.at, "how": measured.how, "trial": measured.trial,
        "load": list(measured.load), "environment": measured.environment,
        "rows": [table.as_json(row) for row in measured.rows],
    }  # fmt: skip


def from_json(told: dict[str, Any]) -> Measured:
    rows = tuple(table.from_json(row) for row in told["rows"])
    before, after = told["load"]
    return Measured(told["group"], rows, told["at"], told["how"], told["trial"], (before, after), told["environment"])


def merged(known: list[Measured], new: list[Measured]) -> list[Measured]:
    """In the order of the groups; a group that was measured again is the new one."""
    by_group = {one.group: one for one in [*known, *new]}
    return [by_group[group] for group in GROUPS if group in by_group]


def markdown(measured: list[Measured]) -> str:
    lines = [table.markdown(row for one in measured for row in one.rows), ""]
    notes = dict.fromkeys(f"{one.group}: {row.note}" for one in measured for row in one.rows if row.note)
    for one in measured:
        trial = "**a trial, whose figures mean little**: " if one.trial else ""
        lines.append(f"- {one.group}: {trial}{one.at}, {one.how}; load {one.load[0]:g} before, {one.load[1]:g} after")
    lines += ["", *(f"- {note}" for note in notes), ""]
    for environment in dict.fromkeys(one.environment for one in measured):
        whose = ", ".join(one.group for one in measured if one.environment == environment)
        lines.append(f"- environment of {whose}: {environment}")
    return "\n".join(lines) + "\n"


def read(file: Path) -> list[Measured]:
    return [from_json(told) for told in json.loads(file.read_text())["groups"]] if file.exists() else []


def write(page: Path, new: list[Measured]) -> None:
    """Into that page, below its marker, and into the JSON beside it."""
    figures = page.with_suffix(".json")
    page.parent.mkdir(parents=True, exist_ok=True)
    everything = merged(read(figures), new)
    above = page.read_text().partition(MARKER)[0] if page.exists() else ""
    page.write_text(f"{above}{MARKER}\n\n{markdown(everything)}")
    figures.write_text(json.dumps({"groups": [as_json(one) for one in everything]}, indent=1) + "\n")
