"""The egress guard (HUB-6) against the spellings and tricks that are used to get past one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import httpcore
import pytest

from dlpipe.core.errors import Permanent, Retryable, StageFailure
from dlpipe.net import urls
from dlpipe.net.guard import GuardedBackend, forbidden, is_public, resolve
from dlpipe.net.policy import NetPolicy

POLICY = NetPolicy()
PRIVATE = NetPolicy(allow_private=True)


class Wire(httpcore.NetworkBackend):
    """Connects nowhere and notes where it was sent."""

    def __init__(self, failing: frozenset[str] = frozenset()) -> None:
        self.connected: list[tuple[str, int]] = []
        self.failing = failing

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.connected.append((host, port))
        if host in self.failing:
            raise httpcore.ConnectError
        return httpcore.NetworkStream()


class Names:
    """A resolver with a book of names; each look-up takes the next entry."""

    def __init__(self, **book: list[list[str]]) -> None:
        self.book, self.asked = book, 0

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        entries = self.book[host.split(".", maxsplit=1)[0]]
        return entries.pop(0) if len(entries) > 1 else entries[0]


FORBIDDEN = [
    # this machine, in every spelling that some C library, browser or resolver takes
    "127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "2130706433", "0x7f000001", "0x7f.0.0.1", "0x7f.1",
    "017700000001", "0177.0.0.1", "0177.1", "0", "0.0.0.0", "0x0", "127.0.0.1.",
    "localhost", "LOCALHOST", "localhost.", "localhost..", "a.localhost", "a.b.LocalHost.",
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    # private networks, and what clouds keep there
    "10.0.0.1", "10.255.255.255", "0xa.0.0.1", "012.0.0.1", "167772161", "172.16.0.1", "172.31.255.255",
    "192.168.0.1", "192.168.1", "169.254.169.254", "0xa9fea9fe", "2852039166", "[::ffff:169.254.169.254]",
    "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16",
    "[fd00::1]", "[fd00:ec2::254]", "[fc00::1]", "[fe80::1]", "[fec0::1]",
    # IPv4 in an IPv6 coat
    "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::7f00:1]", "[64:ff9b:1::808:808]",
    "[2002:7f00:1::]", "[2002:808:808::]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    # not hosts at all
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "192.88.99.1", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255", "[ff02::1]", "[2001:db8::1]", "[100::1]", "[3fff::1]", "[4000::1]",
    "[::ffff:8.8.8.8]",
]  # fmt: skip
ALLOWED = ["8.8.8.8", "134744072", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255",
           "100.128.0.1", "[2606:4700::1111]", "[2a00:1450:4001::1]", "[64:ff9b::808:808]", "example.com",
           "localhost.example", "notlocalhost", "127.0.0.1.example"]  # fmt: skip


@pytest.mark.parametrize("host", FORBIDDEN)
def test_forbidden_before_any_look_up(host: str) -> None:
    assert forbidden(host, 80, POLICY) is not None


@pytest.mark.parametrize("host", FORBIDDEN)
def test_forbidden_at_connect_time_without_touching_the_network(host: str) -> None:
    wire, names = Wire(), Names()
    with pytest.raises(Permanent) as caught:
        GuardedBackend(POLICY, resolve=names, connect=wire).connect_tcp(host.strip("[]"), 80)
    assert caught.value.code == "egress_forbidden"
    assert "DLPIPE_ALLOW_PRIVATE=1" in caught.value.hint
    assert (wire.connected, names.asked) == ([], 0)


@pytest.mark.parametrize("host", FORBIDDEN)
def test_forbidden_as_the_url_parser_spells_it(host: str) -> None:
    parsed = urls.parse(f"http://{host}/")
    assert parsed is None or forbidden(parsed.host, 80, POLICY) is not None


@pytest.mark.parametrize("host", ALLOWED)
def test_allowed(host: str) -> None:
    assert forbidden(host, 443, POLICY) is None


@pytest.mark.parametrize("port", [22, 25, 6379, 0, 65535])
def test_port_that_is_not_on_the_list(port: int) -> None:
    assert forbidden("example.com", port, POLICY) is not None
    assert forbidden("example.com", port, PRIVATE) is None
    with pytest.raises(Permanent):
        GuardedBackend(POLICY, resolve=Names(example=[["8.8.8.8"]]), connect=Wire()).connect_tcp("example.com", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "[::1]", "169.254.169.254"])
def test_allow_private_lifts_the_rules(host: str) -> None:
    assert forbidden(host, 6379, PRIVATE) is None


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "10.0.0.1"],
        ["10.0.0.1", "8.8.8.8"],
        ["8.8.8.8", "::1"],
        ["2606:4700::1111", "fe80::1%eth0"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        ["8.8.8.8", "not an address"],
    ],
)
def test_name_with_any_address_that_is_not_public_is_refused(found: list[str]) -> None:
    wire = Wire()
    with pytest.raises(Permanent) as caught:
        GuardedBackend(POLICY, resolve=Names(mixed=[found]), connect=wire).connect_tcp("mixed.example", 80)
    assert caught.value.code == "egress_forbidden"
    assert "mixed.example" in caught.value.message
    assert not any(address in str(caught.value) for address in found)  # names inside stay inside
    assert wire.connected == []


def test_rebinding_gains_nothing_because_the_checked_address_is_connected_to() -> None:
    wire, names = Wire(), Names(rebind=[["8.8.8.8"], ["127.0.0.1"]])
    GuardedBackend(POLICY, resolve=names, connect=wire).connect_tcp("rebind.example", 80)
    assert names.asked == 1
    assert wire.connected == [("8.8.8.8", 80)]


def test_next_checked_address_is_tried_when_one_does_not_answer() -> None:
    wire, names = Wire(frozenset({"8.8.8.8"})), Names(two=[["8.8.8.8", "8.8.4.4"]])
    GuardedBackend(POLICY, resolve=names, connect=wire).connect_tcp("two.example", 80)
    assert wire.connected == [("8.8.8.8", 80), ("8.8.4.4", 80)]


def test_last_error_stands_when_no_address_answers() -> None:
    wire, names = Wire(frozenset({"8.8.8.8"})), Names(one=[["8.8.8.8"]])
    with pytest.raises(httpcore.ConnectError):
        GuardedBackend(POLICY, resolve=names, connect=wire).connect_tcp("one.example", 80)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no such name"), "host_unknown"),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "dns_failed"),
        (OSError("broken"), "dns_failed"),
        (UnicodeError("label too long"), "dns_failed"),
    ],
)
def test_a_name_that_cannot_be_looked_up_is_no_reason_to_give_up_for_good(error: Exception, code: str) -> None:
    def failing(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(StageFailure) as caught:
        GuardedBackend(POLICY, resolve=failing, connect=Wire()).connect_tcp("a.example", 80)
    assert isinstance(caught.value, Retryable)
    assert caught.value.code == code
    assert caught.value.hint


def test_name_without_addresses() -> None:
    with pytest.raises(Retryable) as caught:
        GuardedBackend(POLICY, resolve=Names(none=[[]]), connect=Wire()).connect_tcp("none.example", 80)
    assert caught.value.code == "host_unknown"


def test_unix_sockets_are_never_connected_to() -> None:
    for policy in (POLICY, PRIVATE):
        with pytest.raises(Permanent):
            GuardedBackend(policy, resolve=Names(), connect=Wire()).connect_unix_socket("/run/docker.sock")


def test_resolve_gives_each_address_once() -> None:
    assert resolve("127.0.0.1", 80) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("network", "public"),
    [("9.255.255.255", True), ("11.0.0.0", True), ("126.255.255.255", True), ("128.0.0.0", True),
     ("169.253.255.255", True), ("169.255.0.0", True), ("223.255.255.255", True), ("198.17.255.255", True),
     ("198.20.0.0", True), ("1fff::1", False), ("2000::1", True), ("2001:200::1", True),
     ("2001:1ff::1", False), ("3ffd::1", True), ("2003::1", True)],
)  # fmt: skip
def test_the_edges_of_the_forbidden_networks(network: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(network)) is public
