"""Which URLs may be planned, and the one spelling under which a URL is known.

Parsing is done outside (a URL parser is a library); here is what we make of the parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from dlpipe.core.errors import InvalidInput

MAX_URL_LENGTH = 8_192
_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile(r"(?<!%)(?<!%[0-9A-Fa-f])%([0-9A-Fa-f]{2})")
"""An escape that does not follow a stray percent sign: decoded, it would make a new escape with that."""
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SECRET_PARAM = re.compile(
    r"(^|[^a-z0-9])(sig|signature|token|secret|password|passwd|pwd|key|apikey|auth|credential|credentials|"
    r"session|sessionid|jsessionid|phpsessid|policy|jwt|hmac|code)($|[^a-z0-9])",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR = re.compile(r"([&;?])")
"""What parts parameters, also those of a URL within the URL."""
_FRONT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*")
_ORIGIN = re.compile(r"(https?)://(\[[^\]/]*\]|[^/?#:]+)(?::([0-9]{1,5}))?(?=[/?#]|\Z)")
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.~%-]+\Z")


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """The parts of an absolute URL after a WHATWG parse: lower-case host, no default port, no dot segments."""

    scheme: str
    has_userinfo: bool
    host: str
    port: int | None
    path: str
    query: str | None


ParseUrl = Callable[[str], ParsedUrl | None]


@dataclass(frozen=True, slots=True)
class PlannedUrl:
    canonical: str
    request: str
    host: str
    port: int


def plan_url(raw: str, parse: ParseUrl) -> PlannedUrl:
    """Refuse what must not be planned; otherwise give the canonical and the request spelling.

    Query parameters are neither reordered nor dropped: their order can carry meaning, and a signature.
    """
    text = raw.strip(" ")
    if not text:
        raise InvalidInput("the URL is empty", code="url_empty", hint="Give an http:// or https:// address.")
    if len(text) > MAX_URL_LENGTH:
        raise InvalidInput(
            f"the URL is longer than {MAX_URL_LENGTH} characters",
            code="url_too_long",
            hint="Ask the provider for a shorter address.",
        )
    if _CONTROL.search(text):
        raise InvalidInput(
            "the URL holds a blank, a control character or half a surrogate pair",
            code="url_control_character",
            hint="Percent-encode blanks as %20 and remove line breaks.",
        )
    parsed = parse(text)
    if parsed is None or not parsed.scheme:
        raise InvalidInput(
            "the URL cannot be parsed", code="url_invalid", hint="Give a full address: https://host/path."
        )
    if parsed.scheme not in _PORTS:
        raise InvalidInput(
            f"the scheme {parsed.scheme!r} is not supported",
            code="url_scheme",
            hint="Only http and https addresses can be planned.",
        )
    if parsed.has_userinfo:
        raise InvalidInput(
            "the URL carries a user name or a password",
            code="url_userinfo",
            hint="Remove the part before the @; credentials in URLs end up in logs.",
        )
    if not parsed.host:
        raise InvalidInput("the URL names no host", code="url_no_host", hint="Give a full address: https://host/path.")
    query = "" if parsed.query is None else "?" + _normal_escapes(parsed.query)
    authority = parsed.host if parsed.port is None else f"{parsed.host}:{parsed.port}"
    canonical = f"{parsed.scheme}://{authority}{_normal_escapes(parsed.path) or '/'}{query}"
    port = parsed.port if parsed.port is not None else _PORTS[parsed.scheme]
    return PlannedUrl(canonical, text.partition("#")[0], parsed.host, port)


def origin(scheme: str, host: str, port: int | None) -> str:
    """What limits and circuits are kept for (HOST-2), as RFC 6454 §6.2 spells it. A closing dot makes no other one."""
    name = host.lower().rstrip(".")
    return f"{scheme}://{name}" if port in (None, _PORTS.get(scheme)) else f"{scheme}://{name}:{port}"


def origin_of(canonical: str) -> str:
    """The origin of a canonical URL; of anything else nothing."""
    parts = _ORIGIN.match(canonical)
    return "" if parts is None else origin(parts[1], parts[2], int(parts[3]) if parts[3] else None)


def _normal_escapes(text: str) -> str:
    """Decode escapes of unreserved characters and write the others in upper case (RFC 3986 §6.2.2)."""

    def one(match: re.Match[str]) -> str:
        char = chr(int(match[1], 16))
        return char if char in _UNRESERVED else match[0].upper()

    return _ESCAPE.sub(one, text) if "%" in text else text


def redact(url: str) -> str:
    """A URL as it may be shown to others: no userinfo, no fragment, no parameter that looks like a secret."""
    base, mark, query = url.partition("#")[0].partition("?")
    front = _FRONT.match(base)
    begin = front.end() if front else 0
    # Browsers take a backslash for a slash, and a scheme without slashes for one with them.
    end = next((at for at, char in enumerate(base) if at >= begin and char in "/\\"), len(base))
    host = base[begin:end].rpartition("@")[2]
    path, *parameters = base[end:].split(";")
    path = ";".join([path, *(_shown(each) for each in parameters)])
    pieces = [_shown(each) for each in _SEPARATOR.split(query)]
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", base[:begin] + host + path + mark + "".join(pieces))


def _shown(parameter: str) -> str:
    name, eq, value = parameter.partition("=")
    words = _HUMP.sub("-", unquote(name))
    if value and (_SECRET_PARAM.search(words) or _is_token(value)):
        return f"{name}{eq}REDACTED"
    # A token may stand for itself, without a name, and end with its padding.
    return "REDACTED" if _is_token(name) and not value.strip("=") else parameter


def _is_token(text: str) -> bool:
    return len(text) >= 24 and _TOKEN.match(text) is not None
