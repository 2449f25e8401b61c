"""The one place where clients are built, and the only module that knows httpx (HUB-1).

The layers of a request, outermost first; what is added later has its place in `_build`:
    retry → guard → connection
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpcore
import httpx

from dlpipe.core.remote import Headers
from dlpipe.net import failures, guard
from dlpipe.net.guard import GuardedBackend, Resolve
from dlpipe.net.policy import NetPolicy
from dlpipe.net.retry import Retry
from dlpipe.net.urls import Address
from dlpipe.net.wire import StaleConnection, WatchedBackend, WatchedStream

_LOGGERS = (
    "httpx", "httpcore", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy",
    "httpcore.socks",
)  # fmt: skip


class Reply:
    """An answer whose head has been read. Closing it early drops the connection; nothing is drained."""

    def __init__(self, response: httpx.Response, address: Address) -> None:
        self._response = response
        self.address = address
        self.status = response.status_code
        self.headers = Headers((k.decode("latin-1"), v.decode("latin-1")) for k, v in response.headers.raw)
        self.framing = _framing(response.request.method, self.status, self.headers)
        if self.framing == "none" or self.headers.one("content-length") == "0":
            for _ in self.chunks():  # nothing comes, and the connection can be used again
                break

    def chunks(self) -> Iterator[bytes]:
        """The raw body in the pieces in which it arrives, at most 64 KiB each."""
        if not self._response.is_stream_consumed and not self._response.is_closed:
            yield from self._response.iter_raw()

    def close(self) -> None:
        self._response.close()


class Hub:
    """Sends requests to servers, through one pooled client per process."""

    def __init__(
        self,
        policy: NetPolicy,
        *,
        resolve: Resolve = guard.resolve,
        connect: httpcore.NetworkBackend | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now_epoch_s: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._backend = WatchedBackend(GuardedBackend(policy, resolve=resolve, connect=connect), policy)
        self._retry = Retry(policy, sleep=sleep, now_epoch_s=now_epoch_s, chance=chance)
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()
        _hubs.add(self)

    def send(self, method: str, address: Address, headers: dict[str, str] | None = None) -> Reply:
        """Ask, and answer with the head; redirects are handed out like any other status."""
        if self.policy.offline:
            raise failures.blocked_offline(address.host)
        why = guard.forbidden(address.host, address.port, self.policy)
        if why is not None:
            raise failures.egress_forbidden(address.host, why)
        client = self._pooled()
        # The path and the query travel beside httpx, byte for byte: it would spell them its own way,
        # and what it does not know it cannot log.
        request = client.build_request(
            method, address.root, headers=headers, extensions={"target": address.target.encode("ascii")}
        )
        try:
            response = client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL):
            # The connection layer raises errors of ours; so this is httpx reading a Location that it
            # does not like, which it does even when it is told not to follow.
            raise failures.redirect_refused(address.host, "the Location cannot be read") from None
        return Reply(response, address)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _pooled(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = _build(self.policy, self._backend, self._retry)
            return self._client

    def _forget(self) -> None:
        """After a fork: the sockets and the state of the lock are the parent's."""
        self._client = None
        self._lock = threading.Lock()


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()


def _forget_all() -> None:
    for hub in list(_hubs):
        hub._forget()


os.register_at_fork(after_in_child=_forget_all)


def _build(policy: NetPolicy, guarded: httpcore.NetworkBackend, retry: Retry) -> httpx.Client:
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)  # below it they write URLs and headers
    return httpx.Client(
        transport=_RetryLayer(retry, _ConnectionLayer(policy, guarded)),
        headers={"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": policy.user_agent},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=httpx.Timeout(policy.read_s, connect=policy.connect_s, pool=None),
        follow_redirects=False,
        trust_env=False,
    )


class _RetryLayer(httpx.BaseTransport):
    def __init__(self, retry: Retry, inner: _ConnectionLayer) -> None:
        self._retry, self._inner = retry, inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._retry.call(
            request.method, request.url.host, lambda afresh: self._inner.send(request, afresh=afresh)
        )

    def close(self) -> None:
        self._inner.close()


class _ConnectionLayer:
    """Connections, guarded: httpcore's errors become ours here."""

    def __init__(self, policy: NetPolicy, backend: httpcore.NetworkBackend) -> None:
        self._policy = policy
        context = _trust(policy)

        def pool(idle: int) -> httpcore.ConnectionPool:
            return httpcore.ConnectionPool(
                ssl_context=context,
                # How many are open at once is for the caller to bound, not for a queue in here.
                max_connections=None,
                max_keepalive_connections=idle,
                keepalive_expiry=policy.keepalive_s,
                http1=True,
                http2=False,
                network_backend=backend,
            )

        self._pool = pool(policy.max_idle_connections)
        self._new_ones = pool(0)

    def send(self, request: httpx.Request, *, afresh: bool) -> httpx.Response:
        host = request.url.host
        url = httpcore.URL(scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=b"/")
        asked = httpcore.Request(request.method, url, headers=request.headers.raw, extensions=request.extensions)
        pool = self._new_ones if afresh else self._pool
        try:
            answer = pool.handle_request(asked)
        except StaleConnection:
            raise
        except httpcore.ConnectTimeout as error:
            raise failures.connect_timeout(host) from error
        except httpcore.ConnectError as error:
            raise failures.connect_failed(host) from error
        except httpcore.TimeoutException as error:
            raise failures.read_timeout(host) from error
        except httpcore.NetworkError as error:
            raise failures.connection_lost(host) from error
        except httpcore.ProtocolError as error:
            raise failures.protocol_error(host, "the head of the answer is malformed") from error
        body = _Body(answer, host, self._policy.read_s)
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        self._pool.close()
        self._new_ones.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response, host: str, read_s: float) -> None:
        self._answer, self._host, self._read_s = answer, host, read_s

    def __iter__(self) -> Iterator[bytes]:
        wire = self._answer.extensions.get("network_stream")
        pieces = iter(self._answer.iter_stream())
        while True:
            if isinstance(wire, WatchedStream):
                # For the whole piece, not for each read: chunk headers can be dripped for ever.
                wire.expect_within(self._read_s)
            try:
                piece = next(pieces)
            except StopIteration:
                return
            except httpcore.TimeoutException as error:
                raise failures.read_timeout(self._host) from error
            except httpcore.NetworkError as error:
                raise failures.body_cut(self._host) from error
            except httpcore.ProtocolError as error:
                if isinstance(wire, WatchedStream) and wire.ended:
                    raise failures.body_cut(self._host) from error
                raise failures.protocol_error(self._host, "the body is malformed") from error
            yield piece

    def close(self) -> None:
        self._answer.close()


def _trust(policy: NetPolicy) -> ssl.SSLContext:
    if policy.ca_file is not None:
        return ssl.create_default_context(cafile=policy.ca_file)
    return httpx.create_ssl_context(trust_env=False)


def _framing(method: str, status: int, headers: Headers) -> str:
    """How the end of the body is told (RFC 9112 §6.3)."""
    if method == "HEAD" or status < 200 or status in (204, 304):
        return "none"
    if headers.all("transfer-encoding"):
        return "chunked"
    return "length" if headers.all("content-length") else "close"
