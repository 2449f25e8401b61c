"""Ways to make us connect to the inside, each the whole way through source, hub and guard: none connects. HUB-6.

Every connection that is made is on record; that of an allowed name shows that the record is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import httpcore
import pytest

from dlpipe.core.errors import DlpipeError, Permanent
from dlpipe.net.client import Hub
from dlpipe.net.policy import NetPolicy
from dlpipe.sources.http import HttpSource
from tests.unit.net.test_guard import FORBIDDEN

PUBLIC = "93.184.216.34"
BOOK = {
    "good.example": [[PUBLIC]],
    "inside.example": [["10.0.0.1"]],
    "loopback.example": [["127.0.0.1"]],
    "metadata.example": [["169.254.169.254"]],
    "v6.example": [["::1"]],
    "local6.example": [["fe80::1%eth0"]],
    "unique6.example": [["fd00::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "compatible.example": [["::127.0.0.1"]],
    "nat64.example": [["64:ff9b::7f00:1"]],
    "6to4.example": [["2002:7f00:1::"]],
    "teredo.example": [["2001:0:4136:e378:8000:63bf:3fff:fdd2"]],
    "multicast.example": [["224.0.0.1"]],
    "zero.example": [["0.0.0.0"]],
    "broadcast.example": [["255.255.255.255"]],
    "mixed.example": [[PUBLIC, "10.0.0.1"]],
    "mixed-first.example": [["10.0.0.1", PUBLIC]],
    "mixed6.example": [[PUBLIC, "2606:4700::1111", "::1"]],
    "mixed-many.example": [[PUBLIC] * 30 + ["192.168.1.1"]],
    "words.example": [["somewhere else"]],
    # Answers well once, and with the inside from then on.
    "rebind.example": [[PUBLIC], ["127.0.0.1"]],
    "127.0.0.1.nip.example": [["127.0.0.1"]],
    "xn--80ak6aa92e.example": [["10.0.0.1"]],
}


class Names:
    def __init__(self) -> None:
        self.book = {name: list(answers) for name, answers in BOOK.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.book[host.rstrip(".")]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Wire(httpcore.NetworkBackend):
    """Connects nowhere; notes where it was sent, and answers with what the test says."""

    def __init__(self) -> None:
        self.connected: list[tuple[str, int]] = []
        self.sockets: list[str] = []
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.connected.append((host, port))
        return httpcore.MockStream([self.answer])

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.sockets.append(path)
        return httpcore.MockStream([self.answer])


class Rig:
    def __init__(self) -> None:
        self.wire, self.names = Wire(), Names()
        self.hub = Hub(NetPolicy(retries=0), resolve=self.names, connect=self.wire, sleep=lambda _: None)
        self.source = HttpSource(self.hub)

    def get(self, url: str) -> int:
        with self.source.get(url, tenant="default") as answer:
            return answer.status

    def redirect(self, location: str) -> None:
        self.wire.answer = (
            f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.hub.close()


WAYS: dict[str, Callable[[Rig, str], object]] = {
    "get": lambda rig, url: rig.get(url),
    "head": lambda rig, url: rig.source.head(url, tenant="default"),
    "revalidation": lambda rig, url: rig.source.unchanged(url, '"v1"', None, tenant="default"),
}

DISGUISED = [
    # another host before the @, and what parsers make of it
    "http://good.example@127.0.0.1/", "http://good.example:80@127.0.0.1/", "http://user:pass@good.example/",
    "http://good.example%40127.0.0.1/", "http://127.0.0.1#@good.example/", "http://127.0.0.1?@good.example/",
    "http://127.0.0.1\\@good.example/",
    # letters and marks that some parsers take for digits and dots
    "http://\uff11\uff12\uff17.0.0.1/", "http://127。0。0。1/", "http://①②⑦.0.0.1/", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "http://127.0.0.1%00.example/",
    "http://%31%32%37.0.0.1/", "http://%6cocalhost/", "http://127.0.0.1%2f.example/", "http://0x7f。1/",
    "http://[::ffff:0x7f.1]/", "http://[::1%25eth0]/", "http://[fe80::1%25lo]/", "http://[::1]:80@good.example/",
    # blanks and controls
    " http://127.0.0.1/", "http://127.0.0.1\t/", "http://127.0\n.0.1/", "http://127.0.0.1\r\nHost: good.example/",
    "http:127.0.0.1/", "http:/127.0.0.1/", "http:///127.0.0.1/", "http://///127.0.0.1/", "//127.0.0.1/",
    # other doors
    "http+unix://%2Frun%2Fdocker.sock/x", "unix:///run/docker.sock", "unix:/run/docker.sock", "file:///etc/passwd",
    "ftp://10.0.0.1/", "gopher://127.0.0.1:6379/_FLUSHALL", "dict://127.0.0.1:11211/", "ldap://10.0.0.1/",
    "data:text/plain,x", "javascript:0", "ws://127.0.0.1/", "jar:http://127.0.0.1!/",
    # ports that speak something else
    "http://good.example:22/", "http://good.example:25/", "http://good.example:6379/", "http://good.example:0/",
    "http://good.example:65536/", "http://good.example:443443/",
]  # fmt: skip
RESOLVED = [f"http://{name}/" for name in BOOK if name not in {"good.example", "rebind.example"}]

EVERYTHING = [f"http://{host}/" for host in FORBIDDEN] + DISGUISED + RESOLVED


@pytest.mark.parametrize(
    ("url", "way"),
    [(url, "get") for url in EVERYTHING] + [(url, way) for way in ("head", "revalidation") for url in EVERYTHING[::9]],
    ids=repr,
)
def test_no_address_of_the_inside_is_connected_to(rig: Rig, url: str, way: str) -> None:
    with pytest.raises(DlpipeError) as caught:
        WAYS[way](rig, url)
    assert isinstance(caught.value, Permanent)
    assert (rig.wire.connected, rig.wire.sockets) == ([], [])


@pytest.mark.parametrize(
    ("location", "way"), [(url, "get") for url in EVERYTHING] + [(url, "head") for url in EVERYTHING[::9]], ids=repr
)
def test_no_redirect_leads_to_the_inside(rig: Rig, location: str, way: str) -> None:
    rig.redirect(location.replace("\r", "").replace("\n", ""))
    try:
        WAYS[way](rig, "http://good.example/")
    except DlpipeError as error:
        assert error.code in {"egress_forbidden", "redirect_refused", "too_many_redirects"}  # noqa: PT017
    assert {host for host, _ in rig.wire.connected} == {PUBLIC}
    assert {port for _, port in rig.wire.connected} <= {80}
    assert rig.wire.sockets == []


def test_a_name_that_changes_its_mind_is_asked_for_and_checked_each_time(rig: Rig) -> None:
    assert rig.get("http://rebind.example/") == 200
    assert rig.wire.connected == [(PUBLIC, 80)]
    assert rig.names.asked == ["rebind.example"]
    with pytest.raises(Permanent):
        rig.get("http://rebind.example/")
    assert rig.wire.connected == [(PUBLIC, 80)]


def test_a_redirect_to_the_name_itself_does_not_rebind_it(rig: Rig) -> None:
    rig.redirect("http://rebind.example/next")
    with pytest.raises(Permanent):
        rig.get("http://rebind.example/")
    assert rig.wire.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    "spelling", ["good.example.", "GOOD.example", "good.EXAMPLE:80", "good.example:8080", "good.example\\@127.0.0.1"]
)
def test_what_may_be_asked_is_connected_to(rig: Rig, spelling: str) -> None:
    rig.names.book["good.example."] = [[PUBLIC]]
    assert rig.get(f"http://{spelling}/") == 200
    assert [host for host, _ in rig.wire.connected] == [PUBLIC]


def test_proxies_of_the_environment_are_not_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://10.0.0.1:8080")
    monkeypatch.setenv("NO_PROXY", "")
    assert rig.get("http://good.example/") == 200
    assert rig.wire.connected == [(PUBLIC, 80)]


def test_there_are_as_many_ways_as_the_issue_asks_for() -> None:
    assert len(set(EVERYTHING)) >= 60
