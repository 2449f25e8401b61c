"""Over TLS, with real servers and the egress guard at work: who is not proved to be the server gives us no byte."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpcore
import pytest

from dlpipe import wiring
from dlpipe.core.errors import Misconfigured
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.net.policy import NetPolicy
from dlpipe.settings import load
from tests.certificates import NAME, Authority, Certificate
from tests.conftest import absent
from tests.fakes.progress import FakeProgress
from tests.origin import Origin, Say, answer
from tests.pipeline import NET, Pipeline, assert_holds
from tests.shelf import Shelf
from tests.webservers import KINDS, WebServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker"),
]

FILE = "file.bin"
BODY = random.Random(8).randbytes(16 << 20)
PUBLIC = "93.184.215.14"
"""What the server's name is said to stand for; the guard lets it pass."""
LONG_AGO = 1_600_000_000.0


@dataclass
class Detour(httpcore.NetworkBackend):
    """Leads connections to the checked address to this machine, and notes which address that was."""

    connected: list[str] = field(default_factory=list)

    def connect_tcp(self, host: str, port: int, *more: object, **named: object) -> httpcore.NetworkStream:
        self.connected.append(host)
        assert host == PUBLIC, "only the checked address may be connected to"
        return httpcore.SyncBackend().connect_tcp("127.0.0.1", port, *more, **named)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def serve(kind: str, tls: Certificate | None) -> WebServer:
    (found,) = (one for one in KINDS if one.name == kind)
    if reason := found.missing():
        absent(reason)
    running = WebServer(found, tls=tls)
    running.put(FILE, BODY, LONG_AGO)
    return running


@pytest.fixture(params=["nginx", "caddy"])
def server(request: pytest.FixtureRequest, authority: Authority) -> Iterator[WebServer]:
    with serve(request.param, authority.sign()) as running:
        yield running


class Guarded(Pipeline):
    """Under the guard as it is shipped; only the ports are those of the tests' servers."""

    def look(self, port: int, authority: Authority | None, *more_ports: int, **net: object) -> Detour:
        detour = Detour()
        ports = frozenset({port, *more_ports})
        policy: NetPolicy = replace(NET, allow_private=False, ports=ports, **net)  # type: ignore[arg-type]
        if authority is not None:
            policy = replace(policy, ca_file=str(authority.file))
        self.surroundings(policy, resolve=lambda _host, _port: [PUBLIC], connect=detour)
        return detour


@pytest.fixture
def pipeline(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Guarded]:
    database = SqlDatabase(ledger_url)
    made = Guarded(database, tmp_path / "store", shelf=shelf)
    yield made
    made.close()
    database.close()


def url(server: WebServer, scheme: str = "https", host: str = NAME) -> str:
    return f"{scheme}://{host}:{server.site.port}/{FILE}"


def assert_done(pipeline: Guarded, job: str) -> None:
    assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None)
    assert_holds(pipeline, BODY)


def assert_refused(pipeline: Guarded, job: str, code: str = "tls_failed", *, for_good: bool = True) -> None:
    assert (pipeline.state(job), pipeline.error(job)) == (State.FAILED, code)
    assert (pipeline.row(job).due_at is None) is for_good
    assert_holds(pipeline)


def test_the_right_certificate_gives_the_bytes(pipeline: Guarded, server: WebServer, authority: Authority) -> None:
    """The server answers only where the name stands in the handshake and in the request: both have it right."""
    detour = pipeline.look(server.site.port, authority)
    assert_done(pipeline, pipeline.fetch(url(server)))
    assert set(detour.connected) == {PUBLIC}


def test_an_authority_that_nobody_told_us_of(pipeline: Guarded, server: WebServer) -> None:
    pipeline.look(server.site.port, None)
    assert_refused(pipeline, pipeline.fetch(url(server)))


def test_another_authority_of_our_own(pipeline: Guarded, server: WebServer, tmp_path: Path) -> None:
    pipeline.look(server.site.port, Authority(tmp_path / "another"))
    assert_refused(pipeline, pipeline.fetch(url(server)))


@pytest.mark.parametrize(
    "made",
    [
        lambda authority: authority.sign("other.example"),
        lambda authority: authority.sign("*.files.example"),
        lambda authority: authority.sign(days=-1),
        lambda authority: authority.self_signed(),
    ],
    ids=["of another name", "of names below it", "expired", "self-signed"],
)
def test_a_certificate_that_proves_nothing(
    pipeline: Guarded, authority: Authority, made: Callable[[Authority], Certificate]
) -> None:
    with serve("nginx", made(authority)) as server:
        pipeline.look(server.site.port, authority)
        assert_refused(pipeline, pipeline.fetch(url(server)))


def test_the_same_server_under_a_name_that_it_has_not(
    pipeline: Guarded, server: WebServer, authority: Authority
) -> None:
    pipeline.look(server.site.port, authority)
    job = pipeline.fetch(url(server, host="other.example"))
    assert_refused(pipeline, job, for_good=server.kind.name == "nginx")  # caddy breaks the handshake off


def test_plain_http_on_a_tls_port(pipeline: Guarded, authority: Authority) -> None:
    with serve("nginx", None) as server:
        pipeline.look(server.site.port, authority)
        assert_refused(pipeline, pipeline.fetch(url(server)), for_good=False)


def test_a_tls_port_that_is_asked_in_plain_http(pipeline: Guarded, server: WebServer, authority: Authority) -> None:
    pipeline.look(server.site.port, authority)
    assert_refused(pipeline, pipeline.fetch(url(server, "http")), "http_4xx")


class Kills(FakeProgress):
    def __init__(self, server: WebServer) -> None:
        super().__init__()
        self._server: WebServer | None = server

    def report(self, job_id: str, done: int, total: int | None) -> None:
        if self._server is not None and done >= 1 << 20:
            self._server.kill()
            self._server = None


def test_resumed_after_the_server_was_killed(pipeline: Guarded, server: WebServer, authority: Authority) -> None:
    pipeline.look(server.site.port, authority)
    pipeline.deps = replace(pipeline.deps, progress=Kills(server))
    job = pipeline.fetch(url(server))
    assert pipeline.error(job) in {"body_cut", "connection_lost"}
    assert_holds(pipeline, part=BODY)
    server.restart()
    detour = pipeline.look(server.site.port, authority)
    pipeline.again(job)
    assert_done(pipeline, job)
    (measured,) = pipeline.sql("SELECT resumed_from_bytes FROM manifest")
    assert measured.resumed_from_bytes >= 1 << 20
    assert set(detour.connected) == {PUBLIC}


def test_a_held_part_is_not_gone_on_with_from_whoever_cannot_prove_the_name(
    pipeline: Guarded, authority: Authority
) -> None:
    with serve("nginx", authority.sign()) as server:
        pipeline.look(server.site.port, authority)
        pipeline.deps = replace(pipeline.deps, progress=Kills(server))
        job = pipeline.fetch(url(server))
        assert pipeline.error(job) in {"body_cut", "connection_lost"}
        server.site = replace(server.site, tls=authority.sign("other.example"))
        server.restart()
        pipeline.look(server.site.port, authority)
        pipeline.again(job)
        assert pipeline.error(job) == "tls_failed"
        assert_holds(pipeline, part=BODY)


def test_redirected_from_http_to_https(pipeline: Guarded, server: WebServer, authority: Authority) -> None:
    with Origin() as plain:
        plain.on("/f", Say(answer(302, b"", f"Location: {url(server)}")))
        pipeline.look(server.site.port, authority, plain.port)
        assert_done(pipeline, pipeline.fetch(f"http://{NAME}:{plain.port}/f"))


@pytest.mark.parametrize("allowed", [False, True])
def test_redirected_from_https_to_http(pipeline: Guarded, authority: Authority, allowed: bool) -> None:
    with Origin() as plain, serve("nginx", authority.sign()) as server:
        there = plain.on("/g", answer(200, BODY, 'ETag: "v"')).replace("127.0.0.1", NAME)
        server.kill()
        server.site = replace(server.site, down=there)
        server.restart()
        pipeline.look(server.site.port, authority, plain.port, allow_https_to_http=allowed)
        asked_before = len(plain.asked)
        down = f"https://{NAME}:{server.site.port}/down"
        job = pipeline.fetch(down)
        if allowed:
            assert_done(pipeline, job)
        else:
            assert_refused(pipeline, job, "redirect_refused")
            assert len(plain.asked) == asked_before


# ── the setting ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.no_engines
def test_the_file_of_the_authority_is_a_setting_that_is_checked_at_start(authority: Authority, tmp_path: Path) -> None:
    chosen = load({"DLPIPE_NET_CA_FILE": str(authority.file), "DLPIPE_HOME": str(tmp_path)}).settings
    assert wiring.net_policy(chosen).ca_file == str(authority.file)
    (tmp_path / "empty.pem").write_text("nothing that is a certificate\n")
    for wrong in ("empty.pem", "absent.pem", "."):
        with pytest.raises(Misconfigured, match=r"net\.ca_file"):
            load({"DLPIPE_NET_CA_FILE": str(tmp_path / wrong), "DLPIPE_HOME": str(tmp_path)})
