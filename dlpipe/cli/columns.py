"""Which column of a table, or which name in a JSON object, gives which field of a request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlpipe.core.errors import InvalidInput

_NUMBERS = ("max_bytes", "priority")
_FLAGS: Mapping[str, Mapping[str, bool]] = {"refresh": {"true": True, "1": True, "false": False, "0": False}}
_LISTS = ("mirrors",)
_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")


@dataclass(frozen=True, slots=True)
class Columns:
    """`mapped` says which column gives a field; a field that it does not name comes from the column of its name."""

    known: frozenset[str]
    mapped: Mapping[str, str] = field(default_factory=dict)
    ignore_unknown: bool = False
    needed: tuple[str, ...] = ("url",)

    @classmethod
    def parse(
        cls, pairs: Iterable[str], known: frozenset[str], *, ignore_unknown: bool, needed: tuple[str, ...] = ("url",)
    ) -> Columns:
        """Read FIELD=COLUMN pairs; InvalidInput says what is wrong with one."""
        mapped: dict[str, str] = {}
        for pair in pairs:
            name, equals, column = (part.strip() for part in pair.partition("="))
            if not equals or not column or name not in known:
                what = "is not of the form FIELD=COLUMN" if not equals or not column else f"names no field: {name!r}"
                raise InvalidInput(f"--map {pair!r} {what}", code="columns_invalid", hint=_fields(known))
            if name in mapped:
                raise InvalidInput(
                    f"--map gives {name} twice, from {mapped[name]!r} and {column!r}",
                    code="columns_invalid",
                    hint="Keep one of them.",
                )
            mapped[name] = column
        return cls(known, mapped, ignore_unknown, needed)

    def hits(self, header: Sequence[str]) -> int:
        """How many of these columns mean something to us, and whether one is the URL: then one more."""
        names = {_plain(name) for name in header}
        found = [name for name in self.known if _plain(self.mapped.get(name, name)) in names]
        return len(found) + ("url" in found)

    def of_header(self, header: Sequence[str]) -> list[tuple[str, int]]:
        """Each field and the number of its column; InvalidInput for a table that cannot be meant."""
        names = [_plain(name) for name in header]
        wanted = {name: _plain(self.mapped.get(name, name)) for name in self.known}
        missing = [column for name, column in self.mapped.items() if wanted[name] not in names]
        if missing:
            raise self._wrong(f"there is no column {_listed(missing)}", header)
        found = [(name, names.index(column)) for name, column in wanted.items() if column in names]
        used = {names[at] for _, at in found}
        twice = [name for name, count in Counter(names).items() if count > 1 and name in used]
        if twice:
            raise self._wrong(f"there is more than one column {_listed(twice)}", header)
        unknown = [name for name in header if _plain(name) and _plain(name) not in used]
        if unknown and not self.ignore_unknown:
            raise InvalidInput(
                f"unknown columns: {_listed(unknown)}",
                code="columns_invalid",
                hint=f"Say what they are with --map FIELD=COLUMN, or leave them out with --ignore-unknown. "
                f"{_fields(self.known)}",
            )
        for name in self.needed:
            if name not in dict(found):
                raise self._wrong(f"no column gives the {'URL' if name == 'url' else name}", header)
        return sorted(found, key=lambda each: each[1])

    def of_row(self, header: Sequence[tuple[str, int]], cells: Sequence[str]) -> dict[str, Any]:
        """The fields of a row; an empty cell says nothing."""
        values = ((name, cells[at].strip()) for name, at in header if at < len(cells))
        return {name: _typed(name, value) for name, value in values if value}

    def of_object(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a JSON object; InvalidInput names what is unknown in it."""
        wanted = {name: self.mapped.get(name, name) for name in self.known}
        unknown = sorted(set(given) - set(wanted.values()))
        if unknown and not self.ignore_unknown:
            raise InvalidInput(
                f"the request has unknown fields: {_listed(unknown)}", code="fields_invalid", hint=_fields(self.known)
            )
        return {name: given[key] for name, key in wanted.items() if key in given}

    def _wrong(self, what: str, header: Sequence[str]) -> InvalidInput:
        return InvalidInput(
            f"{what}; its columns are {_listed(header)}",
            code="columns_invalid",
            hint=f"Say which column is which with --map, as in --map url=LINK. {_fields(self.known)}",
        )


def _plain(name: str) -> str:
    return name.strip().lower()


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name[:80]) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _fields(known: Iterable[str]) -> str:
    return f"Fields: {', '.join(sorted(known))}."


def _typed(name: str, value: str) -> Any:
    """What is no number, or no yes or no, stays text, and is refused with its line."""
    if name in _LISTS:
        return value.split()
    if name in _FLAGS:
        return _FLAGS[name].get(value.lower(), value)
    return int(value) if name in _NUMBERS and _NUMBER.match(value) else value
