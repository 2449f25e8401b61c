"""Clients of the Redis that an address names: a server, or the master that some Sentinels agree on.

`sentinel://user:password@one:26379/0;sentinel://two:26379` names Sentinels, as it does for the broker. User, password
and number are those of the server they lead to.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.sentinel import Sentinel

SENTINEL = "sentinel://"
_PORT = 26_379


def connect(
    url: str, *, master: str | None = None, sentinel_password: str | None = None, **options: Any
) -> redis.Redis:
    """A client; nothing is connected to yet. ValueError when the address is none."""
    if not url.startswith(SENTINEL):
        return redis.Redis.from_url(url, **options)
    if master is None:
        raise ValueError("Sentinels know servers by the name of a master")
    parts = [urlsplit(one) for one in url.split(";") if one]
    if any(part.scheme != "sentinel" or not part.hostname for part in parts):
        raise ValueError("each address must be that of a Sentinel")
    first = parts[0]
    times = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout") if name in options}
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [(part.hostname, part.port or _PORT) for part in parts],
        sentinel_kwargs={**times, "password": sentinel_password},
    )
    client: redis.Redis = sentinels.master_for(  # type: ignore[no-untyped-call]
        master,
        db=int(first.path.strip("/") or 0),
        username=unquote(first.username) if first.username else None,
        password=unquote(first.password) if first.password else None,
        **options,
    )
    return client
