"""Logins that are refused are not repeated, and no secret is told to anybody."""

from __future__ import annotations

import logging

import pytest
from werkzeug import Response

from dlpipe.core.errors import Misconfigured, TorrentOutage, TorrentRefused
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import torrents_made
from tests.webapi import MAGNET, SECRETS, V1, Clock, WebApi, add, entry, listed


def test_a_session_that_ended_is_renewed(server: WebApi, client: QBittorrent) -> None:
    server.on("torrents/info", Response("Forbidden", 403), listed(entry(V1)), Response("", 403), listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]
    assert list(client.torrents([V1])) == [V1]
    assert server.count("auth/login") == 2


REFUSALS = [Response("Fails."), Response("Unauthorized", 401), Response("Your IP address has been banned", 403)]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["4.5", "5.2", "banned"])
def test_a_refused_login_is_not_repeated_before_the_pause_is_over(
    server: WebApi, client: QBittorrent, clock: Clock, refusal: Response
) -> None:
    server.on("torrents/info", Response("Forbidden", 403))
    server.on("auth/login", refusal)
    for _ in range(10):
        with pytest.raises(TorrentOutage) as outage:
            client.torrents([V1])
        assert outage.value.code == "torrent_login_refused"
    assert server.count("auth/login") == 1
    clock.now_s += qbittorrent_api.LOGIN_PAUSE_S - 0.001
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("auth/login") == 1
    clock.now_s += 0.001
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("auth/login") == 2
    clock.now_s += qbittorrent_api.LOGIN_PAUSE_S
    server.on("auth/login", Response("Ok."))
    server.on("torrents/info", Response("", 403), listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]


def test_a_login_that_is_not_answered_is_tried_once_and_may_be_tried_again(server: WebApi, client: QBittorrent) -> None:
    server.on("torrents/info", Response("Forbidden", 403))
    server.on("auth/login", server.hang)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("auth/login") == 1
    server.ending.set()
    server.on("auth/login", Response("Ok."))
    server.on("torrents/info", Response("", 403), listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]


def test_an_api_key_is_sent_and_nobody_logs_in(server: WebApi, clock: Clock) -> None:
    client = QBittorrent(qbittorrent_api.make(server.url, api_key="qbt_apikey", monotonic_s=clock), lambda url: b"")
    server.on("torrents/info", listed(entry(V1)), Response("", 403))
    client.torrents([V1])
    assert server.asked[0][1]["Authorization"] == "Bearer qbt_apikey"
    with pytest.raises(TorrentOutage) as outage:
        client.torrents([V1])
    assert outage.value.code == "torrent_login_refused"
    assert server.count("auth/login") == 0
    # A key that was refused is not shown again for a while either.
    for _ in range(3):
        with pytest.raises(TorrentOutage, match="a short time ago"):
            client.torrents([V1])
    assert server.count("torrents/info") == 2
    clock.now_s += qbittorrent_api.LOGIN_PAUSE_S
    server.on("torrents/info", listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]


def test_the_environment_lends_neither_a_proxy_nor_credentials(
    server: WebApi, client: QBittorrent, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    netrc = f"{tmp_path}/netrc"
    with open(netrc, "w") as file:
        file.write("machine localhost login a password b\nmachine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", netrc)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.on("torrents/info", listed(entry(V1)))
    client.torrents([V1])
    assert "Authorization" not in server.asked[0][1]


# Secrets.


@pytest.mark.parametrize("status", [200, 302, 400, 403, 404, 409, 415, 500])
def test_no_secret_is_in_an_error_or_a_log(
    server: WebApi, clock: Clock, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    torrents = torrents_made.bencode({"passkey": "passkey-1234", "info": {"pieces": b"x" * 20}})
    for username, password, key in (("admin", "hunter2-secret", ""), ("", "", "qbt_apikey")):
        client = QBittorrent(
            qbittorrent_api.make(server.url, username, password, key, read_s=1), lambda url: b"", sleep=clock.sleep
        )
        for method in ("add", "info", "files", "delete", "stop", "pause"):
            server.on(f"torrents/{method}", Response(f"echo {SECRETS} {MAGNET}", status))
        said = []
        for call in (
            lambda client=client: add(client),
            lambda client=client: add(client, torrents),
            lambda client=client: client.torrents([V1]),
            lambda client=client: client.files(V1),
            lambda client=client: client.stop(V1),
            client.version,
            client.free_space,
        ):
            try:
                call()
            except (TorrentOutage, TorrentRefused) as error:
                said.append(f"{error} {error.hint} {error!r}")
        assert said
        for secret in SECRETS:
            assert secret not in " ".join(said) + caplog.text


# Settings.


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://x",
        "http://",
        "http://a:b@x",
        "http://x/?k=v",
        "http://x:0",
        "http://x:99999",
        "http://[x",
    ],
)
def test_an_address_that_cannot_be_used_is_said_at_once_without_repeating_it(url: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        qbittorrent_api.make(url)
    assert wrong.value.code == "torrent_url_invalid"
    assert "a:b" not in str(wrong.value)


@pytest.mark.parametrize(("password", "key"), [("x", "qbt_k"), ("", "two words"), ("", "line\nbreak")])
def test_credentials_that_cannot_be_used_are_said_at_once(password: str, key: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        qbittorrent_api.make("http://x", "", password, key)
    assert wrong.value.code == "torrent_credentials_invalid"
