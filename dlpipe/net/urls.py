"""URLs as browsers read them (WHATWG, by ada), and where a redirect leads. No other parser reads a URL here.

What is checked, what is connected to and what is sent all come from one parse; two parsers that
disagree about the host are how egress checks are passed by.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

import ada_url

from dlpipe.core.urls import ParsedUrl, origin, plan_url

DEFAULT_PORTS = {"http": 80, "https": 443}


def parse(raw: str) -> ParsedUrl | None:
    """The parts of an absolute URL; None when it is none."""
    try:
        return _parts(raw)
    except ValueError:  # also what cannot be encoded as UTF-8
        return None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a request goes. The target can hold secrets, so it is shown nowhere."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    sha256: str = field(repr=False)
    """Of the canonical URL: tells two addresses apart without naming them."""

    @property
    def origin(self) -> str:
        return origin(self.scheme, self.host, self.port)

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/"


def address(raw: str) -> Address:
    """The address that a URL names, in the caller's spelling; InvalidInput for what may not be asked."""
    planned = plan_url(raw, parse)
    parts = parse(planned.request)
    assert parts is not None  # noqa: S101 - plan_url has just parsed it
    target = parts.path + ("" if parts.query is None else f"?{parts.query}")
    digest = hashlib.sha256(planned.canonical.encode()).hexdigest()
    return Address(parts.scheme, parts.host, planned.port, target, digest)


def identity(at: Address, volatile: frozenset[str]) -> str:
    """`sha256` of the address without the query parameters that say nothing about which file it is (HTTP.md row 42)."""
    path, mark, query = at.target.partition("?")
    kept = [pair for pair in query.split("&") if pair.partition("=")[0].lower() not in volatile]
    if not mark or len(kept) == query.count("&") + 1:
        return at.sha256
    return hashlib.sha256(f"{at.root[:-1]}{path}?{'&'.join(kept)}".encode()).hexdigest()


def join(base: Address, location: str) -> str | None:
    """The absolute URL that a Location names as seen from `base`; None when it cannot be read."""
    try:
        # Headers reach us as Latin-1; what servers mean by bytes over 0x7f is UTF-8.
        text = location.encode("latin-1").decode("utf-8")
        return ada_url.URL(text, base=base.root[:-1] + base.target).href
    except ValueError:
        return None


def _parts(raw: str) -> ParsedUrl:
    href = ada_url.parse_url(raw, _HREF)["href"]
    # What the parser wrote is read, and not what it was given: in there each mark stands for one thing only.
    if (written := _WRITTEN.match(href)) is not None:
        scheme, host, port, path, query = written.groups()
        return ParsedUrl(scheme, False, host, int(port) if port else None, path, query)
    return _asked(ada_url.URL(raw), href)


_HREF = ("href",)
_WRITTEN = re.compile(
    r"(https?)://(\[[0-9a-f:]+\]|[^\s/?#@:\[\]]+)(?::([0-9]+))?(/[^\s?#]*)(?:\?([^\s#]*))?(?:#\S*)?\Z", re.ASCII
)


def _asked(url: ada_url.URL, href: str) -> ParsedUrl:
    """By the parser's own answers: each is a call of its own, so what cannot be there is not asked for."""
    return ParsedUrl(
        scheme=href.partition(":")[0],
        has_userinfo="@" in href and bool(url.username or url.password),
        host=url.hostname,
        port=int(url.port) if url.port else None,
        path=url.pathname,
        # An empty query is spelled `?` and is not the same address as none at all.
        query=url.search[1:] if "?" in href.partition("#")[0] else None,
    )
