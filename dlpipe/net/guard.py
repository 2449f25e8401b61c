"""The egress guard: which hosts, addresses and ports may be connected to (HUB-6).

A name is resolved once, every address it has is checked, and the connection goes to a checked
address, so that a name which answers differently the second time (DNS rebinding) gains nothing.
The rules are written out: `ipaddress.is_global` lets multicast, 6to4 and NAT64 of loopback pass.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence

import httpcore

from dlpipe.net import failures
from dlpipe.net.policy import NetPolicy

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
"""(host, port) → numeric addresses, best first. OSError of the socket module when there are none."""

_FORBIDDEN_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; some clouds' metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host agent
        "169.254.0.0/16",  # link-local; cloud metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_FORBIDDEN_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo, ORCHID, benchmarking
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address of anybody's choice inside
        "3ffe::/16",  # the old 6bone
        "3fff::/20",  # documentation
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMERIC = re.compile(r"[0-9a-fx.]+\Z", re.IGNORECASE)


def is_public(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in net for net in _FORBIDDEN_V4)
    if address in _NAT64:
        # Where only IPv6 is spoken, this prefix stands for the IPv4 address in its last 32 bits.
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _GLOBAL_V6 and not any(address in net for net in _FORBIDDEN_V6)


def forbidden(host: str, port: int, policy: NetPolicy) -> str | None:
    """Why a host as written and a port may not be asked, without looking the name up; None when they may."""
    if policy.allow_private:
        return None
    if port not in policy.ports:
        return f"port {port} is not among the allowed ones"
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return "the name stands for this machine"
    address = literal(name)
    if address is not None and not is_public(address):
        return f"{address} is not a public address"
    return None


def literal(host: str) -> IPAddress | None:
    """The address that a host spells out, in any spelling that the C library accepts; None for a name."""
    text = host.strip("[]")
    if ":" not in text and not _NUMERIC.match(text):
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        pass
    if ":" in text:
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))  # 2130706433, 0x7f.1, 0177.0.0.1
    except OSError:
        return None


def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedBackend(httpcore.NetworkBackend):
    """Connects to checked addresses only; whoever connects through it cannot forget the check."""

    def __init__(
        self,
        policy: NetPolicy,
        *,
        resolve: Resolve = resolve,
        connect: httpcore.NetworkBackend | None = None,
    ) -> None:
        self._policy = policy
        self._resolve = resolve
        self._connect = connect if connect is not None else httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        why = forbidden(host, port, self._policy)
        if why is not None:
            raise failures.egress_forbidden(host, why)
        addresses = self._checked(host, port)
        last: Exception | None = None
        for address in addresses:
            try:
                return self._connect.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
        raise last if last is not None else failures.host_unknown(host)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        raise failures.egress_forbidden("a unix socket", "only hosts on the network are asked")

    def _checked(self, host: str, port: int) -> list[str]:
        try:
            found = self._resolve(host.strip("[]"), port)
        except socket.gaierror as error:
            unknown = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
            raise (failures.host_unknown if error.errno in unknown else failures.dns_failed)(host) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that no DNS name can have
            raise failures.dns_failed(host) from error
        if self._policy.allow_private:
            return list(found)
        for text in found:
            # One private address among public ones is enough: which of them is used is chance.
            address = literal(text)
            if address is None or not is_public(address):
                # Which one is not said: names inside are nobody's business outside.
                raise failures.egress_forbidden(host, "it has an address that is not public")
        return list(found)
