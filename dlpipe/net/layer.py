"""The shape that all layers of the hub share: each is given a request and the way further in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Ask:
    """What layers know of a request. Its path and query can hold secrets and are not theirs to see."""

    method: str
    host: str
    origin: str = ""
    """Scheme, host and port: what shares limits and a circuit (HOST-2)."""
    url: str = ""
    """A digest, which tells two URLs of an origin apart without naming them."""
    tenant: str = ""
    """Connections are used again within one tenant only."""
    afresh: bool = False
    """It has to go over a new connection."""


class Answered(Protocol):
    """The head of an answer whose body may still be on its way."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Any: ...
    def close(self) -> None: ...
    def on_close(self, action: Callable[[], None]) -> None:
        """Have `action` done once the body is over, read or not."""


R = TypeVar("R", bound=Answered)


class Layer(Protocol):
    """Stands between a request and the server; what it raises is an error of ours."""

    def call(self, ask: Ask, send: Callable[[Ask], R]) -> R: ...


def single(headers: Any, name: str) -> str | None:
    """The value of a header that came once; joined values would not be what the server said."""
    values = headers.get_list(name)
    return str(values[0]) if len(values) == 1 else None
