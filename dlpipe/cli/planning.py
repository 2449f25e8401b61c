"""From inputs to planned jobs, for `plan` and `fetch` alike: what is bad is told and kept, the rest is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from dlpipe.cli import output
from dlpipe.cli.inputs import Entry, Inputs
from dlpipe.cli.interrupts import Interrupts
from dlpipe.cli.reading import reading
from dlpipe.cli.rejects import NOWHERE, Rejects, rejects
from dlpipe.core.errors import InvalidInput
from dlpipe.core.urls import redact
from dlpipe.pipeline import planner
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import Planned, Refusal

SHOWN_CHARACTERS = 200
FEW = 20
"""So many refused lines need no summary."""
FIRST = 5
_LOOK_EVERY = 200


@dataclass(frozen=True, slots=True)
class _Given:
    position: int
    entry: Entry


@dataclass
class _Refusals:
    """How many there were of each kind, and where the first stood: no more is kept of them."""

    kinds: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def add(self, entry: Entry, refusal: Refusal) -> None:
        self.kinds[refusal.code] += 1
        if len(self.first) < FIRST:
            self.first.append(f"{entry.where} [{refusal.code}]")

    def tell(self) -> None:
        """Where there are more than are seen at a glance, since each was told when it was met."""
        if self.kinds.total() > FEW:
            kinds = ", ".join(f"{count:,} {code}" for code, count in self.kinds.most_common())
            output.note(f"refused in all: {kinds}; the first: {'; '.join(self.first)}")


@dataclass
class Planning:
    """One pass over the inputs. `refused` is called for each bad request as soon as it is met."""

    deps: Deps
    wanted: Inputs
    refused: Callable[[Entry, Refusal], None]
    shown: bool = True
    planned: int = 0
    _kept: Rejects = NOWHERE
    _refusals: _Refusals = field(default_factory=_Refusals)

    def run(self) -> Iterator[tuple[Entry, Planned]]:
        """What became of each request that is not bad, in no strict order."""
        with closing(self.wanted), rejects(self.wanted.rejects) as kept:
            self._kept = kept
            try:
                if self.wanted.strict:
                    self._check_all()
                with Interrupts() as interrupts:
                    yield from self._run(interrupts)
            except KeyboardInterrupt:
                self._say_what_stands()
                raise
            finally:
                self._refusals.tell()

    def _run(self, interrupts: Interrupts) -> Iterator[tuple[Entry, Planned]]:
        under_way: dict[int, _Given] = {}
        shown = self.shown and bool(self.wanted.files)
        with reading(self.wanted.bytes_total if shown else None, shown=shown) as told:
            for answered in planner.plan_each(self.deps, self._requests(under_way, interrupts, told)):
                given = under_way.pop(answered.position)
                if isinstance(answered, Refusal):
                    self._refuse(given.entry, replace(answered, position=given.position))
                else:
                    self.planned += 1
                    yield given.entry, answered

    def _requests(
        self, under_way: dict[int, _Given], interrupts: Interrupts, told: Callable[[int, int], None]
    ) -> Iterator[dict[str, Any]]:
        """The readable requests. `under_way` has those that the planner was given and has not answered."""
        entries, given, position = self.wanted.entries(), 0, 0
        while True:
            interrupts.look()
            interrupts.waiting = True
            entry = next(entries, None)
            interrupts.waiting = False
            if entry is None:
                return
            position += 1
            if position % _LOOK_EVERY == 1:
                told(self.wanted.bytes_read, self.planned)
            if entry.bad is not None:
                self._refuse(entry, Refusal(position, entry.bad.code, entry.bad.message, entry.bad.hint))
                continue
            given += 1
            under_way[given] = _Given(position, entry)
            yield dict(entry.fields)
            if given in under_way:  # it was taken, so its line is needed no longer, however long that is
                under_way[given] = _Given(position, replace(entry, fields={"url": entry.url}, raw=b""))

    def _check_all(self) -> None:
        """Before a strict plan: InvalidInput when one request is bad, and nothing has changed."""
        bad = position = 0
        for position, entry in enumerate(self.wanted.entries(), start=1):
            error = entry.bad or self._fault(entry)
            if error is not None:
                bad += 1
                self._refuse(entry, Refusal(position, error.code, error.message, error.hint))
        if bad:
            raise InvalidInput(
                f"{bad} of {position} requests are bad, and nothing was planned",
                code="input_refused",
                hint="Mend them, or leave out --strict to have the others planned.",
            )

    def _fault(self, entry: Entry) -> InvalidInput | None:
        try:
            planner.spec(self.deps, entry.fields)
        except InvalidInput as error:
            return error
        return None

    def _refuse(self, entry: Entry, refusal: Refusal) -> None:
        self._kept.add(entry, refusal)
        self._refusals.add(entry, refusal)
        # In one piece, so that two such lines never mix with a progress bar.
        output.note(f"refused: {entry.where}{_shown(entry.url)}: {refusal.message} [{refusal.code}] {refusal.hint}")
        self.refused(entry, refusal)

    def _say_what_stands(self) -> None:
        output.note(
            f"{self.planned} requests are planned. To repeat the command is harmless: what is planned stays as it is, "
            "and the rest is added."
        )


def _shown(url: Any) -> str:
    if not isinstance(url, str):
        return ""
    text = redact(url)
    return " " + (text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")
