"""From bytes to numbered lines: unpacks what is packed, bounds every line, and takes nothing but UTF-8.

What a line is called is its physical number in the unpacked file. A bad line says why, and the next one is read; what
breaks off in the middle ends with a line that says so, and never with half a line.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from dlpipe.core.errors import InvalidInput

MAX_LINE_BYTES = 1 << 18
"""More than sixteen mirrors of the longest URL need, and little enough for a batch of lines in memory."""
_BLOCK = 1 << 16
_MAX_DICTIONARY = 1 << 27
"""What an xz file may ask for in memory; `xz -9` needs half of it."""
UNSUPPORTED = "input_unsupported"
_BREAKS = (OSError, EOFError, zlib.error, lzma.LZMAError)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_UNSUPPORTED = (
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "Unpack it on the way: zstd -dc FILE | dlpipe … -"),
    (b"PK\x03\x04", "a zip archive", "Unpack it on the way: unzip -p FILE | dlpipe … -"),
    (b"PAR1", "a Parquet file", "Write it as CSV or JSONL first."),
    (b"SQLite format 3\0", "an SQLite database", "Write it as CSV or JSONL first."),
)
_HEAD = max(len(magic) for magic, _, _ in _UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Line:
    """One physical line, or the place where the file can be read no further (then `raw` is empty and `bad` is set)."""

    number: int
    raw: bytes
    text: str = ""
    bad: InvalidInput | None = None


class Counted(io.RawIOBase):
    """A stream that knows how much was taken from it, and whose first bytes can be looked at."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream: Any = stream
        self.taken = 0
        self.head = b""
        while len(self.head) < _HEAD and (piece := self._read(_HEAD - len(self.head))):
            self.head += piece
        self._left = self.head

    def _read(self, count: int) -> bytes:
        piece: bytes = self._stream.read1(count)
        self.taken += len(piece)
        return piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left:
            piece, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        else:
            piece = self._read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def unpacked(stream: Counted) -> IO[bytes]:
    """The plain bytes, packed or not; InvalidInput for a kind of file that is not read."""
    for magic, what, hint in _UNSUPPORTED:
        if stream.head.startswith(magic):
            raise InvalidInput(f"it is {what}", code=UNSUPPORTED, hint=hint)
    plain = io.BufferedReader(stream, _BLOCK)
    if stream.head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=plain, mode="rb"))
    if stream.head.startswith(b"BZh"):
        return io.BufferedReader(_Unpacking(plain, bz2.BZ2Decompressor), _BLOCK)
    if stream.head.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Unpacking(plain, lambda: lzma.LZMADecompressor(memlimit=_MAX_DICTIONARY)), _BLOCK)
    return plain


class _Unpacking(io.RawIOBase):
    """Bzip2 or xz, never more of it in memory than was asked for; also several files after each other."""

    def __init__(self, packed: IO[bytes], make: Callable[[], Any]) -> None:
        self._packed: Any = packed
        self._make, self._machine = make, make()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._machine.eof:
                data = self._machine.unused_data.lstrip(b"\0") or self._packed.read(_BLOCK).lstrip(b"\0")
                if not data:
                    return 0
                self._machine = self._make()
            elif self._machine.needs_input:
                data = self._packed.read1(_BLOCK)
                if not data:
                    raise EOFError
            made = self._machine.decompress(data, len(buffer))
            if made:
                buffer[: len(made)] = made
                return len(made)


def lines(stream: IO[bytes]) -> Iterator[Line]:
    """Each line with its number; memory is bounded whatever comes."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE_BYTES + 1)
            too_long = len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n")
            piece = raw
            while too_long and piece and not piece.endswith(b"\n"):
                piece = stream.readline(_BLOCK)
        except _BREAKS as error:
            yield Line(number, b"", bad=_broken(error))
            return
        if not raw:
            return
        if number == 1:
            if raw.startswith(_UTF16) or raw[1:64:2].count(0) > len(raw[1:64:2]) // 2:
                yield Line(number, b"", bad=_utf16())
                return
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        yield Line(number, b"", bad=_too_long()) if too_long else _decoded(number, raw)


def _decoded(number: int, raw: bytes) -> Line:
    try:
        return Line(number, raw, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        bad = InvalidInput(
            f"the line is not UTF-8: byte 0x{raw[error.start]:02x} at place {error.start + 1}",
            code="line_not_utf8",
            hint="Convert the file, for example with: iconv -f WINDOWS-1252 -t UTF-8 FILE",
        )
        return Line(number, raw, bad=bad)


def _utf16() -> InvalidInput:
    return InvalidInput(
        "the file is UTF-16, and only UTF-8 is read",
        code=UNSUPPORTED,
        hint="Convert it on the way: iconv -f UTF-16 -t UTF-8 FILE | dlpipe … -",
    )


def _too_long() -> InvalidInput:
    return InvalidInput(
        f"the line is longer than {MAX_LINE_BYTES:,} bytes",
        code="line_too_long",
        hint="Put one request on each line; long data does not belong into it.",
    )


def _broken(error: Exception) -> InvalidInput:
    why = "it ends in the middle" if isinstance(error, EOFError) else getattr(error, "strerror", None) or str(error)
    return InvalidInput(
        f"the file cannot be read from here on: {why}",
        code="input_broken",
        hint="What stood before is not affected. Get the file again, and repeat the command: nothing is planned twice.",
    )
