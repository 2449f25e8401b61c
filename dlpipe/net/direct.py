"""The body of an answer straight from its socket into the reader's own memory, past the parser (ADR 28).

It leans on the private layout of httpcore and h11: what is found otherwise than expected goes the ordinary way.
The parser is told how much was taken, so that it ends the body, and gives the connection back, as it always does.
"""

from __future__ import annotations

from typing import Any

import h11
import httpcore

READER = "ContentLengthReader"
LEAST_BYTES = 256 << 10
"""Of a smaller rest the parser makes as short work."""


class Direct:
    """A body of known length, without any coding, of which the parser has read the head."""

    def __init__(self, buffered: Any, reader: Any) -> None:
        self._buffered = buffered
        self._reader = reader

    @property
    def left(self) -> int:
        """How many bytes may be read from the socket now; 0 while the parser holds some, and at the end."""
        left: int = 0 if len(self._buffered) else self._reader._remaining
        return left

    def took(self, size: int) -> None:
        self._reader._remaining -= size


def direct(answer: httpcore.Response) -> Direct | None:
    """None where the ordinary way is the only one: chunks, an end by closing, a short body, an unknown layout."""
    try:
        parser = answer.stream._connection._h11_state  # type: ignore[union-attr]
        reader, buffered = parser._reader, parser._receive_buffer
        suits = (
            isinstance(parser, h11.Connection)
            and parser.their_state is h11.SEND_BODY
            and type(reader).__name__ == READER
            and isinstance(reader._remaining, int)
            and reader._remaining >= LEAST_BYTES
        )
        return Direct(buffered, reader) if suits and len(buffered) >= 0 else None
    except (AttributeError, TypeError):
        return None
