"""What a server said, reduced to the facts that decisions are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


class Headers:
    """Response headers: case-insensitive names, every value kept, in order."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name.lower(), []).append(value.strip(" \t"))

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(self._values.get(name.lower(), ()))

    def one(self, name: str) -> str | None:
        """The value when the header came exactly once; None when it is absent or came several times."""
        found = self._values.get(name.lower(), ())
        return found[0] if len(found) == 1 else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"Headers({sorted(self._values)})"  # names only: values can be secrets


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """The remote file as HEAD (a hint) or the head of a GET answer (the truth) describes it."""

    http_status: int
    final_url_sha256: str
    etag: str | None = None
    last_modified: str | None = None
    date: str | None = None
    accept_ranges: str | None = None
    content_length: int | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class PartFacts:
    """Bytes we hold of a remote file, and the validators under which they came."""

    good: int
    """Bytes known to be right, from the start."""
    final_url_sha256: str
    etag: str | None = None
    last_modified: str | None = None
    date: str | None = None
    total: int | None = None
    complete: bool = False
    promised: str | None = None
    """They came from several servers without a validator in common: right only if the file has this sha256."""
    length_unproven: bool = False
    """They are complete, and nothing but the end of the connection says so."""
