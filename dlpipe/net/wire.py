"""Watches the bytes of a connection: bounds the head of each answer and tells why a body ended.

The HTTP parser behind it (h11) takes any number of 1xx answers, merges repeated Content-Length
fields, and would take bytes that follow an answer for the next one. Here they are still visible.
"""

from __future__ import annotations

import fcntl
import re
import socket
import ssl
import struct
import termios
from collections.abc import Callable
from typing import Any

import httpcore

from dlpipe.core import answers
from dlpipe.net import failures
from dlpipe.net.chunks import ChunkedBody, ChunkError
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wires import Wires

_BLANK_LINE = re.compile(rb"\n\r?\n")  # as h11 sees it, so that both agree where a head ends
_MOMENT = struct.pack("@ll", 0, 100_000)
"""A `struct timeval`: for so long the kernel goes on filling before it hands over what there is."""
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?=[ \r\n]|\Z)")  # row 51
_BEGINS = b"HTTP/1."
_FOLD = re.compile(rb"\n[ \t]")  # RFC 9112 §5.2: obsolete
_FOLDED = "a header is folded over several lines"
_NO_STATUS_LINE = "the answer does not begin with a status line of HTTP/1.0 or HTTP/1.1"


class StaleConnection(httpcore.ReadError):
    """A kept-alive connection was closed just as we used it: the server has not seen the request (row 48)."""


class DoubtfulAnswer(Exception):
    """What came on a reused connection may be no answer to this request; a fresh connection tells (row 50).

    `status` is what it said, None where it was no answer at all and its origin is marked already.
    """

    def __init__(self, status: int | None = None, mark: Callable[[str], None] | None = None) -> None:
        super().__init__(status)
        self._status, self._mark = status, mark

    def compare(self, status: int) -> None:
        """The fresh connection's answer has this status: if it is another one, the origin is marked."""
        if self._mark is not None and status != self._status:
            self._mark(f"status {self._status} on a reused connection was not the answer to its request")


class WatchedStream(httpcore.NetworkStream):
    """One connection. A new exchange begins with the first bytes written after an answer's head was read."""

    def __init__(
        self,
        inner: httpcore.NetworkStream,
        host: str,
        policy: NetPolicy,
        clock: Callable[[], float],
        wires: Wires | None = None,
    ) -> None:
        self._inner, self._host, self._policy, self._clock = inner, host, policy, clock
        self._wires = wires or Wires()
        self._wires.add(inner)
        self._exchanges = 0
        self._in_head = False
        self._heard = False
        self._head = bytearray()
        self._scanned = 0
        self._lines = 0
        self._interim = 0
        self._bodyless = False
        self._expected: int | None = None
        self._chunked: ChunkedBody | None = None
        self._after_head = 0
        self._deadline: float | None = None
        self._sock: socket.socket | None = None
        self._patient: bool | None = None
        """Does the kernel wait for a body's bytes, rather than Python? None: not known yet."""
        self.ended = False
        """The server has closed the connection."""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer and not self._in_head:
            self._exchanges += 1
            self._in_head = True
            self._heard = False
            self._head.clear()
            self._scanned = self._lines = self._interim = self._after_head = 0
            self._bodyless = buffer.startswith(b"HEAD ")
            self._expected = self._chunked = None
            self.expect_within(self._policy.head_s)
        try:
            self._inner.write(buffer, timeout)
        except httpcore.WriteError:
            self._wires.check()
            raise

    def expect_within(self, seconds: float) -> None:
        """Whatever is waited for next has to be here by then, in however many reads it comes."""
        self._deadline = self._clock() + seconds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = self._inner.read(max_bytes, self._time_left(timeout))
        except httpcore.ReadError as error:
            self.ended = True
            self._wires.check()
            if self._unheard():
                raise StaleConnection from error
            raise
        if not data:
            self.ended = True
            self._wires.check()
            if self._unheard():
                raise StaleConnection
            if self._in_head:
                raise httpcore.ReadError("closed within the head of the answer")
        elif self._in_head:
            if not self._heard and self.is_reused and self._is_unacknowledged():
                raise self._refusal("bytes came on a reused connection before the request was there")
            self._heard = True
            self._head += data
            self._read_head()
        else:
            self._take_body(data)
        return data

    def _take_body(self, data: bytes | bytearray) -> None:
        self._after_head += len(data)
        if self._chunked is not None:
            try:
                self._chunked.feed(bytes(data))
            except ChunkError as error:
                raise self._refusal(str(error)) from error

    def read_into(self, buffer: memoryview, within_s: float) -> int:
        """Like `read`, of a body, into the reader's own memory; 0 when the server has closed the connection."""
        sock = self._sock
        if sock is None:
            sock = self._sock = self._inner.get_extra_info("socket")
        try:
            size = self._fill(sock, buffer, within_s)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            self.ended = True
            self._wires.check()
            raise httpcore.ReadError(str(error)) from error
        if not size:
            self.ended = True
            self._wires.check()
        self._after_head += size
        return size

    def _fill(self, sock: socket.socket, buffer: memoryview, within_s: float) -> int:
        """Let the kernel fill the buffer, as far as it comes within a moment: one call for a block instead of many."""
        self.expect_within(within_s)
        if self._patient is None:
            self._patient = not isinstance(sock, ssl.SSLSocket) and _made_patient(sock)
        timeout = None if self._patient else within_s
        if sock.gettimeout() != timeout:  # each setting is a call into the kernel
            sock.settimeout(timeout)
        if timeout is not None:
            return sock.recv_into(buffer)
        while True:
            try:
                return sock.recv_into(buffer, 0, socket.MSG_WAITALL)
            except BlockingIOError:  # nothing came at all
                self._time_left(None)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            inner = self._inner.start_tls(ssl_context, server_hostname, timeout)
        except httpcore.ConnectError as error:
            self._wires.check()
            cause = error.__cause__ or error.__context__
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise failures.tls_untrusted(self._host, cause.verify_message) from error
            raise failures.tls_failed(self._host) from error
        return WatchedStream(inner, self._host, self._policy, self._clock, self._wires)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    @property
    def is_reused(self) -> bool:
        """Has it carried an exchange before this one?"""
        return self._exchanges > 1

    @property
    def is_within_head(self) -> bool:
        """Has an answer begun whose head has not ended?"""
        return self._in_head and self._heard

    def has_surplus(self) -> bool:
        """Have bytes come behind the end of the answer (row 49)? They belong to no request of ours."""
        surplus = self._surplus
        return surplus is not None and (surplus > 0 or self._has_arrived())

    def is_over(self) -> bool:
        """Has the answer ended just as it declared, on a connection that is still open?"""
        return self._surplus == 0 and not self.ended

    @property
    def _surplus(self) -> int | None:
        """How many bytes were read behind the end of the answer; None while there is no such end."""
        if self._in_head:
            return None
        if self._chunked is not None:
            return self._chunked.surplus if self._chunked.ended else None
        if self._expected is None or self._after_head < self._expected:
            return None
        return self._after_head - self._expected

    def _is_unacknowledged(self) -> bool:
        """Has the server's kernel yet to confirm some of the request? Then what has come cannot be its answer.

        A segment with an answer confirms the request with it, so an honest one is never here too early. This is how
        surplus that was on its way together with the request is told from an answer.
        """
        sock = self._inner.get_extra_info("socket")
        if not isinstance(sock, socket.socket):
            return False
        try:
            return fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)) != bytes(4)
        except OSError:  # a machine that does not tell
            return False

    def _has_arrived(self) -> bool:
        """Is a byte there that was not read yet? Only looks, and waits for none."""
        sock = self._inner.get_extra_info("socket")
        if not isinstance(sock, socket.socket):
            return bool(self._inner.get_extra_info("is_readable"))
        try:
            sock.settimeout(0)
            # What the kernel has of TLS may be a record without data, such as a session ticket: only reading tells.
            found = sock.recv(1) if isinstance(sock, ssl.SSLSocket) else sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:  # reset, or closed here already
            found = b""
        self.ended = self.ended or not found
        return bool(found)

    def _unheard(self) -> bool:
        return self._in_head and not self._heard and self._exchanges > 1

    def _time_left(self, timeout: float | None) -> float | None:
        if self._deadline is None:
            return timeout
        left = self._deadline - self._clock()
        if left <= 0:
            raise httpcore.ReadTimeout("the deadline has passed")
        return left if timeout is None else min(timeout, left)

    def _read_head(self) -> None:
        while True:
            found = _BLANK_LINE.search(self._head, max(0, self._scanned - 2))
            size = found.end() if found else len(self._head)
            if size > self._policy.max_header_bytes:
                raise self._refusal(f"the head of the answer is larger than {self._policy.max_header_bytes} bytes")
            if found is None:
                self._check_begun()
                self._scanned = size
                return
            # What was seen of 1xx answers counts too: the bounds are on all that comes before the body.
            self._lines += self._head.count(b"\n", 0, found.start())
            if self._lines > self._policy.max_header_count:
                raise self._refusal(f"the answer has more than {self._policy.max_header_count} header lines")
            if self._is_final(bytes(self._head[: found.start()])):
                self._in_head = False
                self._take_body(self._head[found.end() :])
                return
            del self._head[: found.end()]
            self._scanned = 0

    def _check_begun(self) -> None:
        """A head that has not ended: what is wrong with it already is not waited for to end."""
        if b"\n" in self._head and _STATUS_LINE.match(self._head) is None:
            raise self._refusal(_NO_STATUS_LINE)
        if not _BEGINS.startswith(bytes(self._head[: len(_BEGINS)])):
            raise self._refusal(_NO_STATUS_LINE)
        if _FOLD.search(self._head, max(0, self._scanned - 1)):
            raise self._refusal(_FOLDED)

    def _is_final(self, head: bytes) -> bool:
        """Look at one complete head: is it the answer itself? What else is malformed the parser refuses."""
        lines = [line.rstrip(b"\r") for line in head.split(b"\n")]
        match = _STATUS_LINE.match(lines[0])
        if match is None:
            raise self._refusal(_NO_STATUS_LINE)
        if any(line[:1] in (b" ", b"\t") for line in lines[1:]):
            raise self._refusal(_FOLDED)
        status = int(match[1])
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            if self._interim > self._policy.max_interim_answers:
                raise self._refusal(f"more than {self._policy.max_interim_answers} interim answers")
            return False
        fields = [(name.lower(), value.strip(b" \t")) for name, _, value in (x.partition(b":") for x in lines[1:])]
        lengths = [value for name, value in fields if name == b"content-length"]
        coded = any(name == b"transfer-encoding" for name, _ in fields)
        if len(lengths) > 1:
            raise self._refusal("the answer has more than one Content-Length")
        length = answers.number(lengths[0].decode("latin-1")) if lengths else None
        if lengths and length is None:
            raise self._refusal("the Content-Length is not a number")
        if coded and lengths:
            raise self._refusal("the answer has both Transfer-Encoding and Content-Length")
        if coded and not lines[0].startswith(b"HTTP/1.1"):
            raise self._refusal("the answer has a Transfer-Encoding and is not HTTP/1.1")
        if self._bodyless or status in (204, 304):
            self._expected = 0
        elif coded:
            self._chunked = ChunkedBody(
                max_trailers=self._policy.max_header_count, max_trailer_bytes=self._policy.max_header_bytes
            )
        else:
            self._expected = length
        return True

    def _refusal(self, what: str) -> Exception:
        return failures.protocol_error(self._host, what)


def _made_patient(sock: socket.socket) -> bool:
    """Have the kernel itself wait, at most a moment, as long as Python has no timeout on the socket."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _MOMENT)
    except OSError:  # a machine with another form of it
        return False
    return True
