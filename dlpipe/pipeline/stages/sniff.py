"""The first bytes of a file against the media type that was asked for (STREAM-4)."""

from __future__ import annotations

from dlpipe.core import media
from dlpipe.core.errors import Permanent
from dlpipe.core.ports import Part


class Sniff:
    def __init__(self, part: Part, expected: str | None) -> None:
        """Without an `expected` media type nothing is looked at."""
        self._part, self._expected = part, expected
        self._done = False

    def again(self) -> None:
        """The file begins anew."""
        self._done = False

    def look(self, *, at_end: bool) -> None:
        """Once there are bytes enough; Permanent when they are of something else."""
        if self._expected is None or self._done:
            return
        if self._part.offset < media.SNIFF_BYTES and not at_end:
            return
        self._done = True
        if wrong := media.mismatch(self._expected, self._part.read(0, media.SNIFF_BYTES)):
            raise Permanent(
                wrong,
                code="media_type_mismatch",
                hint="Open the address in a browser: often it is a login or an error page. "
                "To take the file as it is, plan it without an expected media type.",
            )
