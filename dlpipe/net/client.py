"""The one place where clients are built, and the only module that knows httpx (HUB-1).

The layers of a request, outermost first, are stacked in `_Clients`:
    cache (metadata only) → retry → breaker → limiter → guard → connection
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpcore
import httpx
from hishel.httpx import CacheTransport

from dlpipe.core.remote import Headers
from dlpipe.net import cache, failures, guard, urls
from dlpipe.net.backend import WatchedBackend
from dlpipe.net.breaker import Breaker, BreakerBounds, LocalCircuits, SharedCircuits
from dlpipe.net.cache import CachePolicy
from dlpipe.net.connection import Body, Connections
from dlpipe.net.gate import SharedGate
from dlpipe.net.guard import GuardedBackend, Resolve
from dlpipe.net.layer import Ask, Layer
from dlpipe.net.limiter import Limiter
from dlpipe.net.limits import HostLimits
from dlpipe.net.line import Line
from dlpipe.net.local_gate import LocalGate
from dlpipe.net.policy import NetPolicy
from dlpipe.net.retry import Retry
from dlpipe.net.reuse import ReuseMarks
from dlpipe.net.urls import Address
from dlpipe.net.wires import Wires

_LOGGERS = (
    "hishel", "httpx", "httpcore", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy",
    "httpcore.socks",
)  # fmt: skip


class Reply:
    """An answer whose head has been read. Closing it early drops the connection; nothing is drained."""

    def __init__(self, response: httpx.Response, address: Address) -> None:
        self._response = response
        self.address = address
        self.status = response.status_code
        self.headers = Headers((k.decode("latin-1"), v.decode("latin-1")) for k, v in response.headers.raw)
        self.is_reused = isinstance(response, _Answered) and response.body.is_reused
        """Had the connection carried an answer before this one? Then this one may belong to no request of ours."""
        self.framing = _framing(response.request.method, self.status, self.headers)
        if self.framing == "none" or self.headers.one("content-length") == "0":
            try:
                for _ in self.chunks():  # nothing comes, and the connection can be used again
                    break
            except BaseException:
                self.close()
                raise

    def read_into(self, buffer: memoryview) -> int:
        """Put the next bytes of the raw body into the buffer; 0 at its end. Not to be mixed with `chunks`."""
        answer = self._response
        if isinstance(answer, _Answered) and not answer.is_closed:
            return answer.body.read_into(buffer)
        return 0

    def chunks(self) -> Iterator[bytes]:
        """The raw body in the pieces in which it arrives, at most 64 KiB each."""
        if not self._response.is_stream_consumed and not self._response.is_closed:
            yield from self._response.iter_raw()

    def disown(self) -> None:
        """It was no answer to its request: no connection to its origin is used twice from now on (row 50)."""
        if isinstance(self._response, _Answered):
            self._response.body.disown()

    def close(self) -> None:
        self._response.close()


class Hub:
    """Sends requests to servers, through one raw and one caching client per process."""

    def __init__(
        self,
        policy: NetPolicy,
        *,
        limits: HostLimits | None = None,
        line: Line | None = None,
        caching: CachePolicy | None = None,
        resolve: Resolve = guard.resolve,
        connect: httpcore.NetworkBackend | None = None,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_epoch_s: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`line` shares limits and circuits with other processes; without it they are this process's own."""
        self.policy = policy
        self._wires = Wires()
        self._build: Callable[[], _Clients] = lambda: _Clients(
            policy,
            WatchedBackend(GuardedBackend(policy, resolve=resolve, connect=connect), policy, wires=self._wires),
            retry=Retry(policy, sleep=sleep or self._wires.pause, now_epoch_s=now_epoch_s, chance=chance),
            breaker=_breaker(policy, line, clock, chance),
            limiter=Limiter(
                policy,
                limits or HostLimits(),
                None if line is None else SharedGate(line),
                LocalGate(clock),
                sleep=sleep or self._wires.pause,
                now_epoch_s=now_epoch_s,
                chance=chance,
            ),
            marks=ReuseMarks(line, policy.no_reuse_s, clock),
            caching=caching,
        )
        self._clients: _Clients | None = None
        self._lock = threading.Lock()
        _hubs.add(self)

    def send(
        self,
        method: str,
        address: Address,
        headers: dict[str, str] | None = None,
        *,
        tenant: str,
        metadata: bool = False,
        afresh: bool = False,
    ) -> Reply:
        """Ask, and answer with the head; redirects are handed out like any other status.

        What is `metadata` may come from the cache; a file never is. `afresh`: over a new connection.
        """
        if self.policy.offline:
            raise failures.blocked_offline(address.host)
        why = guard.forbidden(address.host, address.port, self.policy)
        if why is not None:
            raise failures.egress_forbidden(address.host, why)
        clients = self._pooled()
        client = clients.cached if metadata else clients.raw
        # The path and the query travel beside httpx, byte for byte: it would spell them its own way,
        # and what it does not know it cannot log.
        request = client.build_request(
            method,
            address.root,
            headers=headers,
            extensions={
                "target": address.target.encode("ascii"),
                "caching": {"key": cache.key(tenant, address)},
                "asking": {
                    "origin": address.origin,
                    "url": urls.identity(address, self.policy.volatile_params),
                    "tenant": tenant,
                    "afresh": afresh,
                },
            },
        )
        try:
            response = client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL):
            # The connection layer raises errors of ours; so this is httpx reading a Location that it
            # does not like, which it does even when it is told not to follow.
            raise failures.redirect_refused(address.host, "the Location cannot be read") from None
        return Reply(response, address)

    def hang_up(self) -> None:
        """The process is to end: who waits for a server gets WorkerEnding now, and so does who asks one later."""
        self._wires.cut()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()

    def _pooled(self) -> _Clients:
        with self._lock:
            if self._clients is None:
                self._clients = self._build()
            return self._clients

    def _forget(self) -> None:
        """After a fork: the sockets and the state of the locks are the parent's."""
        # Kept, as to let go of it would close the cache's database, which only the parent may do.
        _inherited.append(self._clients)
        self._clients = None
        self._lock = threading.Lock()
        self._wires = Wires()


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()
_inherited: list[object] = []


def _forget_all() -> None:
    for hub in list(_hubs):
        hub._forget()


os.register_at_fork(after_in_child=_forget_all)


def hang_up() -> None:
    """All hubs of this process do."""
    for hub in list(_hubs):
        hub.hang_up()


def _breaker(policy: NetPolicy, line: Line | None, clock: Callable[[], float], chance: Callable[[], float]) -> Breaker:
    bounds = BreakerBounds.of(policy)
    shared = None if line is None else SharedCircuits(line, bounds)
    return Breaker(policy, shared, LocalCircuits(bounds, clock), chance=chance)


class _Clients:
    """The layers in their order, and the two clients on top of them: one for files, one that may remember."""

    def __init__(
        self,
        policy: NetPolicy,
        guarded: httpcore.NetworkBackend,
        *,
        retry: Retry,
        breaker: Breaker,
        limiter: Limiter,
        marks: ReuseMarks,
        caching: CachePolicy | None,
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)  # below it they write URLs and headers
        self._limiter = limiter
        layers = _Layers((retry, breaker, limiter), Connections(policy, guarded, _trust(policy), marks))
        storage = None if caching is None else cache.open_storage(caching)
        self.raw = self.cached = _client(policy, layers)
        if storage is not None:
            self.cached = _client(policy, CacheTransport(layers, storage, rfc=True))

    def close(self) -> None:
        self.cached.close()  # with its storage
        self.raw.close()
        self._limiter.close()


def _client(policy: NetPolicy, transport: httpx.BaseTransport) -> httpx.Client:
    return httpx.Client(
        transport=transport,
        headers={"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": policy.user_agent},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=httpx.Timeout(policy.read_s, connect=policy.connect_s, pool=None),
        follow_redirects=False,
        trust_env=False,
    )


class _Layers(httpx.BaseTransport):
    """Leads a request through each layer to the connection."""

    def __init__(self, layers: Sequence[Layer], connections: Connections) -> None:
        self._layers, self._connections = layers, connections

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        host, asking = request.url.raw_host.decode("ascii"), request.extensions["asking"]
        return self._through(0, request, Ask(request.method, host, **asking))

    def _through(self, depth: int, request: httpx.Request, ask: Ask) -> _Answered:
        if depth == len(self._layers):
            port, headers = request.url.port, request.headers.raw
            answer, body = self._connections.send(ask, port, headers, request.extensions)
            return _Answered(answer, body)
        return self._layers[depth].call(ask, lambda passed: self._through(depth + 1, request, passed))

    def close(self) -> None:
        self._connections.close()


class _Answered(httpx.Response):
    """The head of an answer, as the layers see it."""

    def __init__(self, answer: httpcore.Response, body: Body) -> None:
        super().__init__(answer.status, headers=answer.headers, stream=_Stream(body), extensions=answer.extensions)
        self.body = body
        self.on_close = body.on_close


class _Stream(httpx.SyncByteStream):
    """A body in the clothes that httpx asks for."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        self._body.close()


def _trust(policy: NetPolicy) -> ssl.SSLContext:
    trust = httpx.create_ssl_context(trust_env=False)
    if policy.ca_file is not None:
        trust.load_verify_locations(policy.ca_file)
    return trust


def _framing(method: str, status: int, headers: Headers) -> str:
    """How the end of the body is told (RFC 9112 §6.3)."""
    if method == "HEAD" or status < 200 or status in (204, 304):
        return "none"
    if headers.all("transfer-encoding"):
        return "chunked"
    return "length" if headers.all("content-length") else "close"
