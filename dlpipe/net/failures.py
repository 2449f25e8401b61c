"""The failures of the network itself, each with a code and a hint. Host names only, never a path or query.

Permanent: `blocked_offline` `egress_forbidden` `redirect_refused` `too_many_redirects` `protocol_error`
`tls_failed` (the certificate is not trusted) `url_*` (see core.urls).
Retryable: `connect_failed` `connect_timeout` `dns_failed` `host_unknown` `tls_failed` (the handshake broke)
`read_timeout` `connection_lost` `body_cut`.
Postponed: `retry_after` `host_busy` `host_cooling_down` `host_circuit_open`.
Codes of refused answers are listed in core.answers.
"""

from __future__ import annotations

from dlpipe.core import answers
from dlpipe.core.errors import Permanent, Postponed, Retryable

ALLOW_PRIVATE_HINT = "Set DLPIPE_ALLOW_PRIVATE=1 if this address is yours and is meant to be reached."


def blocked_offline(host: str) -> Permanent:
    return Permanent(
        f"{host} was not asked: offline mode is on",
        code="blocked_offline",
        hint="Turn offline mode off (DLPIPE_OFFLINE=0) to download; what is already held still resolves.",
    )


def egress_forbidden(host: str, why: str) -> Permanent:
    return Permanent(f"{host} may not be asked: {why}", code="egress_forbidden", hint=ALLOW_PRIVATE_HINT)


def dns_failed(host: str) -> Retryable:
    return Retryable(
        f"the address of {host} could not be looked up",
        code="dns_failed",
        hint="Check the DNS of this machine; the download is tried again by itself.",
    )


def host_unknown(host: str) -> Retryable:
    # Retryable: behind a resolver that is starting up a good name looks just like a wrong one.
    return Retryable(
        f"there is no host called {host}",
        code="host_unknown",
        hint="Check the spelling of the host name in the address.",
    )


def connect_failed(host: str) -> Retryable:
    return Retryable(
        f"{host} cannot be reached",
        code="connect_failed",
        hint="The server or the way to it is down; the download is tried again by itself.",
    )


def connect_timeout(host: str) -> Retryable:
    return Retryable(
        f"{host} did not accept a connection in time",
        code="connect_timeout",
        hint="The server or the way to it is down; the download is tried again by itself.",
    )


def tls_untrusted(host: str, why: str) -> Permanent:
    return Permanent(
        f"the certificate of {host} is not trusted: {why}",
        code="tls_failed",
        hint="Check the address; a certificate authority of your own is trusted by net.ca_file.",
    )


def tls_failed(host: str) -> Retryable:
    return Retryable(
        f"no encrypted connection to {host} could be made",
        code="tls_failed",
        hint="The server may speak only outdated TLS; the download is tried again by itself.",
    )


def read_timeout(host: str) -> Retryable:
    return Retryable(
        f"{host} stopped sending",
        code="read_timeout",
        hint="The server is slow or overloaded; the download is tried again by itself.",
    )


def connection_lost(host: str) -> Retryable:
    return Retryable(
        f"{host} closed the connection before it answered",
        code="connection_lost",
        hint="The server is overloaded or refuses us silently; the download is tried again by itself.",
    )


def body_cut(host: str) -> Retryable:
    return Retryable(
        f"{host} broke off in the middle of the file",
        code="body_cut",
        hint="What has arrived is kept; the download goes on from there by itself.",
    )


def protocol_error(host: str, what: str) -> Permanent:
    reject = answers.protocol_error(what)
    return Permanent(f"{host}: {what}", code=reject.code, hint=reject.hint)


def retry_after(origin: str, after_s: float) -> Postponed:
    return Postponed(
        f"{origin} answers that it is too busy for this address, which is asked for again in {after_s:.0f} s",
        code="retry_after",
        after_s=after_s,
        hint="The download is tried again then, by itself; other files of that server go on.",
    )


def host_busy(origin: str, after_s: float) -> Postponed:
    return Postponed(
        f"{origin} is asked as much as it may be; our turn comes in about {after_s:.0f} s",
        code="host_busy",
        after_s=after_s,
        hint="It goes on by itself; DLPIPE_NET_RATE_PER_S, DLPIPE_NET_SLOTS_PER_HOST and the limits file allow more.",
    )


def host_cooling_down(origin: str, after_s: float) -> Postponed:
    return Postponed(
        f"{origin} answers that it is too busy, and is left alone for {after_s:.0f} s",
        code="host_cooling_down",
        after_s=after_s,
        hint="The download is tried again then, by itself; other servers' go on.",
    )


def host_circuit_open(origin: str, after_s: float) -> Postponed:
    return Postponed(
        f"{origin} failed many times in a row and is left alone for {after_s:.0f} s",
        code="host_circuit_open",
        after_s=after_s,
        hint="One request at a time looks whether it is back; the downloads then go on by themselves.",
    )


def redirect_refused(host: str, why: str) -> Permanent:
    return Permanent(
        f"{host} redirects in a way that is not followed: {why}",
        code="redirect_refused",
        hint="Open the address in a browser and plan the address where the file really is.",
    )


def too_many_redirects(host: str, limit: int) -> Permanent:
    return Permanent(
        f"more than {limit} redirects, the last from {host}",
        code="too_many_redirects",
        hint="Open the address in a browser; it may need a login or a cookie.",
    )
