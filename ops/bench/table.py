"""What was measured, judged against its target: medians, ratios, met or missed. Pure; no clock and no files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """How the two medians become one figure, and which side of the bound is good."""

    TIMES_FASTER = "times faster"
    """Theirs by ours, both times: at least."""
    TIMES_THE_RATE = "times the rate"
    """Ours by theirs, both rates: at least."""
    TIMES_THE_TIME = "times the time"
    """Ours by theirs, both times: at most."""
    MORE = "more"
    """Ours less theirs, in their unit: at most."""


AT_LEAST = frozenset({Kind.TIMES_FASTER, Kind.TIMES_THE_RATE})


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `ours` and `theirs` hold one figure per round, in the order of the rounds.

    Without a bound it is for information. `missing` says why there are no figures.
    """

    group: str
    what: str
    against: str
    kind: Kind
    bound: float | None
    unit: str
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    missing: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Of the medians; None when a side was not measured."""
        if self.missing or not self.ours or not self.theirs:
            return None
        return _figure(self.kind, median(self.ours), median(self.theirs))

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the greatest figure of a single round."""
        if self.ratio is None or len(self.ours) != len(self.theirs):
            return None
        each = [_figure(self.kind, ours, theirs) for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return min(each), max(each)

    @property
    def met(self) -> bool | None:
        """None when there is no target, or nothing to hold against it."""
        if self.bound is None or self.ratio is None:
            return None
        return self.ratio >= self.bound if self.kind in AT_LEAST else self.ratio <= self.bound

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return f"missing: {self.missing or 'not measured'}"
        if self.bound is None:
            return "-"
        return "met" if self.met else "**missed**"


def _figure(kind: Kind, ours: float, theirs: float) -> float:
    match kind:
        case Kind.TIMES_FASTER:
            return theirs / ours
        case Kind.TIMES_THE_RATE | Kind.TIMES_THE_TIME:
            return ours / theirs
        case Kind.MORE:
            return ours - theirs


def turns(names: Sequence[T], number: int) -> list[T]:
    """The order of one round: each round begins with another, so that none always comes after the same one."""
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]


# ── shown ─────────────────────────────────────────────────────────────────────────────────────────

HEAD = ("what", "against", "ours", "theirs", "ratio (rounds)", "target", "")


def cells(row: Row) -> tuple[str, ...]:
    ours, theirs = (_value(each, row.unit) for each in (row.ours, row.theirs))
    return row.what, row.against, ours, theirs, _ratio(row), _target(row), row.verdict


def markdown(rows: Iterable[Row]) -> str:
    lines = [" | ".join(("", *HEAD, "")).strip(), "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(cell.replace('|', '¦') for cell in cells(row))} |" for row in rows]
    return "\n".join(lines)


def plain(rows: Iterable[Row]) -> str:
    """The same for a terminal, in columns."""
    table = [HEAD, *(tuple(cell.replace("**", "") for cell in cells(row)) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
    )


def as_json(row: Row) -> dict[str, Any]:
    """All figures, and what they come to."""
    spread = row.spread
    return {**asdict(row), "ratio": row.ratio, "spread": list(spread) if spread else None, "met": row.met}


def from_json(told: dict[str, Any]) -> Row:
    kept = {name: told[name] for name in Row.__dataclass_fields__}
    return Row(**{**kept, "kind": Kind(kept["kind"]), "ours": tuple(kept["ours"]), "theirs": tuple(kept["theirs"])})


def _value(figures: Sequence[float], unit: str) -> str:
    return f"{_short(median(figures))} {unit}" if figures else "-"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    spread = row.spread
    rounds = f" ({_short(spread[0])}…{_short(spread[1])})" if spread and len(row.ours) > 1 else ""
    return f"{_signed(row, row.ratio)}{rounds}"


def _target(row: Row) -> str:
    if row.bound is None:
        return "-"
    return f"{'≥' if row.kind in AT_LEAST else '≤'} {_signed(row, row.bound)}"


def _signed(row: Row, figure: float) -> str:
    return f"{figure:+.3g} {row.unit}" if row.kind is Kind.MORE else f"{_short(figure)} x"


def _short(figure: float) -> str:
    """Three digits that count, and never an exponent."""
    if abs(figure) >= 100:
        return f"{figure:.0f}"
    return f"{figure:.3g}"
