"""Files from web servers: HEAD as a hint, GET as the truth, redirects followed by hand hop by hop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dlpipe.core import answers, ranges, revalidation
from dlpipe.core.answers import GONE
from dlpipe.core.errors import InvalidInput, Permanent, Postponed, StageFailure
from dlpipe.core.remote import Headers, RemoteFacts
from dlpipe.net import failures, redirects, urls
from dlpipe.net.client import Hub, Reply
from dlpipe.net.urls import Address

# What goes wrong with a HEAD in these ways may go well with a GET (row 40).
_ONLY_A_HINT = frozenset(
    {
        "connection_lost", "http_408", "http_425", "http_5xx", "protocol_error", "read_timeout",
        "redirect_refused", "too_many_redirects",
    }
)  # fmt: skip

# When a conditional request fails in these ways, so will any other.
_OUT_OF_REACH = frozenset(
    {
        "blocked_offline", "connect_failed", "connect_timeout", "dns_failed", "egress_forbidden", "host_unknown",
        "tls_failed",
    }
)  # fmt: skip


class HttpAnswer:
    """The head of a GET answer, and its raw body."""

    def __init__(self, reply: Reply, place: str) -> None:
        self._reply = reply
        self._place = place

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Headers:
        return self._reply.headers

    @property
    def final_url_sha256(self) -> str:
        return self._place

    @property
    def framing(self) -> str:
        return self._reply.framing

    @property
    def is_reused(self) -> bool:
        return self._reply.is_reused

    def disown(self) -> None:
        self._reply.disown()

    def chunks(self) -> Iterator[bytes]:
        """The raw body in the pieces in which it arrives; each is waited for at most `read_s`."""
        return self._reply.chunks()

    def read_into(self, buffer: memoryview) -> int:
        return self._reply.read_into(buffer)


class HttpSource:
    """A `core.ports.Source` over HTTP/1.1."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def head(self, url: str, *, tenant: str) -> RemoteFacts | None:
        """What HEAD says of the file; None when GET must tell."""
        try:
            reply = self._open("HEAD", url, {}, tenant, metadata=True)
        except StageFailure as failure:
            if failure.code in _ONLY_A_HINT:
                return None
            raise
        reply.close()
        if reply.status in GONE:
            return self._confirmed(url, tenant)
        if reply.status != 200:
            return None
        return ranges.facts(reply.status, reply.headers, self._place(reply))

    def unchanged(self, url: str, etag: str | None, last_modified: str | None, *, tenant: str) -> bool | None:
        """Does the URL still give what came under these validators? None when that cannot be told."""
        at = _address(url)
        if self._hub.policy.offline:
            raise failures.blocked_offline(at.host)
        condition = revalidation.condition(etag, last_modified)
        if condition is None:
            return None
        try:
            # One request, over the raw client: a redirect leads to another URL, whose validators are its own.
            # Over a new connection, as no digest would tell that a 304 belongs to another request.
            reply = self._hub.send("GET", at, dict(condition), tenant=tenant, afresh=True)
        except Postponed:
            raise
        except StageFailure as failure:
            if failure.code in _OUT_OF_REACH:
                raise
            return None
        reply.close()
        return revalidation.is_same(reply.status, reply.headers, etag)

    @contextmanager
    def get(
        self,
        url: str,
        *,
        tenant: str,
        start: int = 0,
        end: int | None = None,
        if_range: str | None = None,
        unproven: bool = False,
        afresh: bool = False,
    ) -> Iterator[HttpAnswer]:
        """Ask for the bytes from `start` to before `end`; all of them where nothing allows to join them."""
        headers = {}
        if (start > 0 or end is not None) and (if_range is not None or unproven):
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if if_range is not None:
                headers["If-Range"] = if_range
        reply = self._open("GET", url, headers, tenant, afresh=afresh)
        try:
            yield HttpAnswer(reply, self._place(reply))
        finally:
            # An unfinished body is not read to its end: the connection goes.
            reply.close()

    def _confirmed(self, url: str, tenant: str) -> RemoteFacts | None:
        """HEAD said that the file is gone: only GET may say so for good (HEAD-2)."""
        reply = self._open("GET", url, {}, tenant)
        reply.close()
        if reply.status in GONE:
            reject = answers.refuse_status(reply.status)
            raise Permanent(f"{reply.address.host}: {reject.message}", code=reject.code, hint=reject.hint)
        if reply.status != 200:
            return None
        return ranges.facts(reply.status, reply.headers, self._place(reply))

    def _place(self, reply: Reply) -> str:
        return urls.identity(reply.address, self._hub.policy.volatile_params)

    def _open(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        tenant: str,
        *,
        metadata: bool = False,
        afresh: bool = False,
    ) -> Reply:
        at = _address(url)
        hops = 0
        while True:
            reply = self._hub.send(method, at, headers, tenant=tenant, metadata=metadata, afresh=afresh)
            if reply.status not in redirects.STATUSES:
                return reply
            reply.close()
            at = redirects.follow(at, reply.headers, hops, self._hub.policy)
            hops += 1


def _address(url: str) -> Address:
    try:
        return urls.address(url)
    except InvalidInput as error:
        raise Permanent(error.message, code=error.code, hint=error.hint) from None
