"""The bounds under which we talk to servers; wiring fills them from the settings (SAFE-4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

DEFAULT_PORTS = frozenset({80, 443, 8080, 8443})


def _user_agent() -> str:
    try:
        return f"dlpipe/{version('dlpipe')}"
    except PackageNotFoundError:  # a checkout that was never installed
        return "dlpipe/0"


@dataclass(frozen=True, slots=True)
class NetPolicy:
    connect_s: float = 10.0
    """Per address tried; also for the TLS handshake."""
    read_s: float = 30.0
    """At most this long between two pieces of a body, however slowly it drips."""
    head_s: float = 60.0
    """For the whole head of an answer."""

    retries: int = 3
    """Tries after the first, within one request."""
    backoff_base_s: float = 0.5
    max_retry_sleep_s: float = 20.0
    """A longer wait is not slept in the worker: the job is handed back (HUB-2)."""
    max_retry_after_s: float = 3_600.0
    """However long a server asks us to stay away, we come back after this."""

    max_wait_s: float = 3.0
    """For our turn at a host; a longer wait is the ledger's."""
    slot_ttl_s: float = 30.0
    """After so long without a sign of life the slot of a killed worker is free again."""
    breaker_failures: int = 10
    """So many in a row, of all workers, and a host is left alone; 0 for never."""
    breaker_open_s: float = 30.0

    max_redirects: int = 10
    allow_https_to_http: bool = False

    volatile_params: frozenset[str] = frozenset()
    """Query parameters, in lower case, of which a fresh one at each request leads to the same file: signatures."""

    allow_private: bool = False
    """Lifts the rules on addresses, names and ports."""
    ports: frozenset[int] = DEFAULT_PORTS
    offline: bool = False

    max_header_count: int = 128
    max_header_bytes: int = 65_536
    max_interim_answers: int = 16
    """1xx answers before the real one."""

    max_idle_connections: int = 64
    keepalive_s: float = 30.0
    no_reuse_s: float = 86_400.0
    """For so long no connection is used twice to an origin that sent bytes belonging to no answer (row 49)."""
    ca_file: str | None = None
    """PEM bundle to trust beside the one of certifi."""
    user_agent: str = field(default_factory=_user_agent)
