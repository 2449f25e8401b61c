"""Bytes that a server sends and no request asked for, and a server full of URLs behind whose answers they come.

HTTP.md rows 49 and 50. On a connection that is used again they look like the answer to the next request: as what, says
`SURPLUS`. What of it may follow an answer to whom without anybody but a digest being able to tell, says `Behind.alone`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile import honest, in_chunks
from tests.origin import Asked, Late, Origin, Say, Script, answer

FORGED = b"no file of this server has these bytes; " * 8
FORGED_PATH = "/forged"

SURPLUS = {
    "plain surplus": FORGED,
    "a forged 200": answer(200, FORGED, 'ETag: "forged"', "Accept-Ranges: bytes"),
    "a forged 404": answer(404, b"gone"),
    "a forged 410 without a body": answer(410),
    "a forged 401": answer(401, b"", "WWW-Authenticate: Basic"),
    "a forged 302": answer(302, b"", f"Location: {FORGED_PATH}"),
    "a forged 206": answer(206, FORGED[:10], "Content-Range: bytes 0-9/10", 'ETag: "forged"'),
    "a forged 304": answer(304, b"", 'ETag: "forged"', length=False),
    "a forged 503": answer(503, b"busy"),
    "a forged 204": answer(204, b"", length=False),
    "a forged 200 that is coded": answer(200, FORGED, "Content-Encoding: gzip"),
    "a flood of 1xx": b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" * 40,
    "half a head of a 404": b"HTTP/1.1 404 Not Fo",
    "half a head of a 200": b"HTTP/1.1 200 OK\r\nX-Half: ",
    "half a head with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Half: ",
    "garbage": b"\x00\xff\x16\x03 no head at all \r\n\r\n\x00",
    "blank lines": b"\r\n\r\n\r\n",
    "an answer of HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
}
FORGES_A_FILE = "a forged 200"
"""The one of these that a client which reuses the connection for a GET cannot tell from the answer to it."""

DELAYS_S = (0.0, 0.001, 0.02, 0.2)


@dataclass(frozen=True)
class Behind:
    """Surplus behind the answers to one method, for one URL."""

    method: str
    surplus: str
    after_s: float | None = None
    """None: in the same segment."""
    closes: bool = False
    """It says `Connection: close`, and does not."""

    @property
    def alone(self) -> bool:
        """Within one tenant only a digest can tell the first of these from an answer."""
        return self.method == "GET" and self.surplus == FORGES_A_FILE

    def __str__(self) -> str:
        when = "at once" if self.after_s is None else f"{self.after_s * 1000:g} ms late"
        return f"{self.surplus} behind {self.method}, {when}{', in spite of close' if self.closes else ''}"

    def script(self, body: bytes) -> Script:
        lines = [f'ETag: "{len(body)}-{body[:4].hex()}"', "Accept-Ranges: bytes"]
        told = honest(body, *lines, *(["Connection: close"] if self.closes else []))
        data = SURPLUS[self.surplus]

        def script(asked: Asked) -> Say:
            say = told(asked)
            if asked.method != self.method:
                return say
            if self.after_s is None:
                return Say(say.data + data)
            return Say(say.data, late=Late(data, self.after_s))

        return script


def every() -> Iterator[Behind]:
    for method in ("HEAD", "GET"):
        for surplus in SURPLUS:
            for after_s in (None, *DELAYS_S):
                yield Behind(method, surplus, after_s)
            yield Behind(method, surplus, 0.001, closes=True)


def bodyless(status: int, body: bytes) -> Script:
    """An answer that has no body (204, 304), with one."""
    return lambda asked: Say(answer(status, body))


def chunked(body: bytes) -> Script:
    told = honest(body)
    return lambda asked: told(asked) if asked.method == "HEAD" else Say(in_chunks(body=body))


@dataclass(frozen=True)
class Url:
    path: str
    tenant: str
    body: bytes
    hostile: str = ""
    """What the server does with it; empty: it is an innocent file."""


def fill(origin: Origin, tenants: tuple[str, ...], innocent: int, seed: int = 18) -> list[Url]:
    """Put innocent files of these tenants on the server, hostile ones among them; answers all, in a mixed order."""
    chance = random.Random(seed)
    urls = []
    for n in range(innocent):
        size = chance.choice((0, 1, 300, 5_000, 70_000)) if n % 20 else 300_000
        urls.append(Url(f"/innocent/{n}", tenants[n % len(tenants)], b"%d:" % n + chance.randbytes(size)))
        origin.on(urls[-1].path, chunked(urls[-1].body) if n % 5 == 4 else honest(urls[-1].body))
    for n, behind in enumerate(every()):
        tenant = f"alone-{n}" if behind.alone else tenants[n % len(tenants)]
        body = b"hostile %d:" % n + chance.randbytes(400)
        urls.append(Url(f"/hostile/{n}", tenant, body, str(behind)))
        origin.on(urls[-1].path, behind.script(body))
    for status in (204, 304):
        urls.append(Url(f"/bodyless/{status}", tenants[0], b"it has no content", f"{status} with a body"))
        origin.on(urls[-1].path, bodyless(status, SURPLUS["a forged 404"]))
    origin.on(FORGED_PATH, honest(FORGED))
    chance.shuffle(urls)
    return urls
