"""Addresses of the broker, of Redis and of the database: what can be said of one before anything is connected to. Pure.

The libraries that use them find most of this out late, each with an error of its own. No sentence here repeats a
word of an address: it may hold a password.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

REDIS = ("redis", "rediss", "unix", "redis+socket", "sentinel")
_SOCKETS = ("unix", "redis+socket")
_WITH_HOST = ("redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp")
_MAX_DATABASE = 1 << 31
_NEVER = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|(?:[^\[\]:%\s]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")


def is_redis(url: str) -> bool:
    return url.split(":", 1)[0] in REDIS


def for_redis(url: str) -> str:
    """As redis-py spells it."""
    return url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)


def for_celery(url: str) -> str:
    """As Celery spells it."""
    if url.startswith("unix://"):
        return url.replace("unix://", "redis+socket://", 1).replace("db=", "virtual_host=", 1)
    if url.startswith("rediss://") and "ssl_cert_reqs=" not in url:
        # Left to itself kombu would take any certificate; redis-py does not.
        return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    return url


def objection(url: str) -> str | None:
    """Why it cannot be an address; None when nothing speaks against it. Several may stand in one, between `;`.

    The libraries take a bare % in a password for itself, and a space in a path or a password: so that is no objection.
    """
    if url.startswith("sqlite"):
        return None  # a path, in which nearly anything may stand
    several = [one for one in url.split(";") if one] if url.startswith(("sentinel:", "amqp", "pyamqp:")) else [url]
    if not several:
        return "it is empty"
    return next((why for why in map(_objection, several) if why is not None), None)


def _objection(url: str) -> str | None:
    if _NEVER.search(url):
        return "it holds a control character, which no address may hold; write it as %0A or the like"
    if "://" not in url:
        return "it does not begin with a scheme, as redis:// does"
    try:
        parts = urlsplit(url)
        unquote(url, errors="strict")
        port = parts.port
    except UnicodeDecodeError:
        return "what its %-escapes stand for is not UTF-8"
    except ValueError as error:
        return "its port is no number up to 65535" if "ort" in str(error) else "its host is none"
    hosts = parts.netloc.rpartition("@")[2]
    if not all(map(_HOST.match, hosts.split(","))) or not _is_name(parts.hostname):
        return "its host is none, or its port is no number"
    if port == 0:
        return "its port is 0"
    if parts.scheme in _WITH_HOST and not parts.hostname:
        return "it names no host"
    return _of_redis(parts) if parts.scheme in REDIS else None


def _is_name(host: str | None) -> bool:
    try:
        return all(one.encode("idna") or not one for one in (host or "").split(","))
    except UnicodeError:
        return False  # a label of it is empty, or too long


def _of_redis(parts: SplitResult) -> str | None:
    if parts.scheme in _SOCKETS:
        return None if not parts.netloc.rpartition("@")[2] and parts.path not in ("", "/") else "it names no socket"
    if parts.scheme == "sentinel" and parts.query:
        return "Sentinels take no options behind a question mark"
    number = parts.path.strip("/")
    if number and not (_NUMBER.match(number) and int(number) < _MAX_DATABASE):
        return "what follows the host is not the number of a database"
    return None
