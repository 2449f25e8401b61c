"""What a log line is about: the ids that every line carries which is written while a message is worked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_NOTHING: Mapping[str, str | int] = MappingProxyType({})
_FIELDS: ContextVar[Mapping[str, str | int]] = ContextVar("dlpipe_about", default=_NOTHING)


def current() -> Mapping[str, str | int]:
    return _FIELDS.get()


@contextmanager
def about(**fields: str | int | None) -> Iterator[None]:
    """Lines of this thread that are written in the block carry these fields beside those around it.

    Ids only: they end up in logs (SAFE-2).
    """
    token = _FIELDS.set({**_FIELDS.get(), **{name: value for name, value in fields.items() if value is not None}})
    try:
        yield
    finally:
        _FIELDS.reset(token)
