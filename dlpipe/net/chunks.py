"""The framing of a chunked body, followed byte by byte beside the parser (RFC 9112 §7.1, HTTP.md row 7).

h11 waits for a CRLF where a server ends a line with a bare LF, so a malformed body would only end with a timeout.
Here it is refused with its first wrong byte, and the end of the body is known exactly.
"""

from __future__ import annotations

import re

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\x00\r\n]*)?\Z")
_LEAST = re.compile(rb"[0-9A-Fa-f]")
_MAX_LINE = 4096


class ChunkError(ValueError):
    """What is wrong, for a person."""


class ChunkedBody:
    """Told of each piece as it arrives; `surplus` counts the bytes behind the end of the body."""

    def __init__(self, *, max_trailers: int, max_trailer_bytes: int) -> None:
        self._max_trailers, self._max_trailer_bytes = max_trailers, max_trailer_bytes
        self._line = bytearray()
        self._in_trailers = False
        self._chunk_left = 0
        self._crlf_left = b""
        self._trailers = 0
        self._trailer_bytes = 0
        self.ended = False
        self.surplus = 0

    def feed(self, data: bytes) -> None:
        """Raises ChunkError at the first byte that no chunked body can have there."""
        at, size = 0, len(data)
        while at < size:
            if self.ended:
                self.surplus += size - at
                return
            if self._chunk_left:
                step = min(self._chunk_left, size - at)
                self._chunk_left -= step
                at += step
                if not self._chunk_left:
                    self._crlf_left = b"\r\n"
            elif self._crlf_left:
                if data[at] != self._crlf_left[0]:
                    raise ChunkError("a chunk is longer than its declared size")
                self._crlf_left = self._crlf_left[1:]
                at += 1
            else:
                end = data.find(b"\n", at)
                self._line += data[at : size if end < 0 else end + 1]
                at = size if end < 0 else end + 1
                if end < 0:
                    self._check_begun()
                else:
                    self._take_line()

    def _check_begun(self) -> None:
        """A line whose end has not come yet."""
        if len(self._line) > (self._max_trailer_bytes if self._in_trailers else _MAX_LINE):
            raise ChunkError("a line of the chunked framing is too long")
        if 0 in self._line or self._line.find(b"\r", 0, -1) >= 0:
            raise ChunkError("a line of the chunked framing has a NUL or a CR in it")
        if self._in_trailers:
            self._check_unfolded(bytes(self._line))
        elif not _LEAST.match(self._line):
            raise ChunkError("a chunk's size is not a number")

    def _take_line(self) -> None:
        line = bytes(self._line[:-1])
        self._line.clear()
        if not line.endswith(b"\r"):
            raise ChunkError("a line of the chunked framing ends with a bare LF")
        line = line[:-1]
        if b"\x00" in line or b"\r" in line:
            raise ChunkError("a line of the chunked framing has a NUL or a CR in it")
        if self._in_trailers:
            self._take_trailer(line)
            return
        found = _SIZE_LINE.match(line)
        if found is None or len(line) > _MAX_LINE:
            raise ChunkError("a chunk's size is not a number")
        self._chunk_left = int(found[1], 16)
        self._in_trailers = not self._chunk_left

    def _take_trailer(self, line: bytes) -> None:
        if not line:
            self.ended = True
            return
        self._trailers += 1
        self._trailer_bytes += len(line) + 2
        if self._trailers > self._max_trailers or self._trailer_bytes > self._max_trailer_bytes:
            raise ChunkError("there are too many trailers")
        self._check_unfolded(line)
        if b":" not in line:
            raise ChunkError("a trailer has no colon")

    def _check_unfolded(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):
            raise ChunkError("a trailer is folded over several lines")
