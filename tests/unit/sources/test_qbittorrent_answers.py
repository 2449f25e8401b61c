"""What we make of qBittorrent's answers: versions that differ, servers that are none, and logins that are refused."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from dlpipe.core.errors import Misconfigured, TorrentOutage, TorrentRefused
from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests import torrents_made

V1, OTHER = "a1" * 20, "b2" * 20
MAGNET = f"magnet:?xt=urn:btih:{V1}&tr=https%3A%2F%2Ftracker.example%2Fpasskey-1234%2Fannounce"
SECRETS = ("hunter2-secret", "passkey-1234", "qbt_apikey")

Answer = Response | Callable[[], Response]


def entry(name: str, **more: object) -> dict[str, object]:
    return {
        "hash": name, "infohash_v1": name, "infohash_v2": "", "state": "stalledDL", "progress": 0.5, "size": 100,
        "completed": 50, "save_path": "/d", "name": "book", **more,
    }  # fmt: skip


def listed(*entries: dict[str, object]) -> Response:
    return Response(json.dumps(entries), content_type="application/json")


@dataclass
class Server:
    """Answers each method of the Web API as told, the last answer for ever; logins succeed unless told otherwise."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def on(self, method: str, *answers: Answer) -> None:
        self.answers[method] = list(answers)

    def count(self, method: str) -> int:
        return sum(name == method for name, _, _ in self.asked)

    def answer(self, request: Request) -> Response:
        method = request.path.removeprefix("/api/v2/")
        form = parse_qs(request.get_data(as_text=True)) or {k: request.form.getlist(k) for k in request.form}
        self.asked.append((method, dict(request.headers), form))
        told = self.answers.get(method, [Response("nothing here", 404)])
        answer = told.pop(0) if len(told) > 1 else told[0]
        return answer() if callable(answer) and not isinstance(answer, Response) else answer

    def hang(self) -> Response:
        self.ending.wait(30)
        return Response("late")


@pytest.fixture
def server(httpserver: HTTPServer) -> Iterator[Server]:
    server = Server(httpserver.url_for("").rstrip("/"))
    server.on("auth/login", Response("Ok.", headers={"Set-Cookie": "SID=x"}))
    server.on("app/webapiVersion", Response("2.8.19"))
    server.on("torrents/addTags", Response(""))
    httpserver.expect_request(re.compile("/.*")).respond_with_handler(server.answer)
    yield server
    server.ending.set()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server: Server, clock: Clock) -> QBittorrent:
    api = qbittorrent_api.make(server.url, "admin", "hunter2-secret", read_s=1, monotonic_s=clock)
    return QBittorrent(api, lambda url: b"", sleep=clock.sleep)


def add(client: QBittorrent, source: str | bytes = MAGNET) -> str:
    return client.add(source, save_path="/d", tag="dlpipe")


# What versions answer to an add.


@pytest.mark.parametrize(
    "answer",
    [
        Response("Ok."),
        Response(json.dumps({"success_count": 1, "failure_count": 0, "pending_count": 0, "added_torrent_ids": [V1]})),
        Response(json.dumps({"success_count": 0, "failure_count": 0, "pending_count": 1}), 202),
    ],
    ids=["4.5", "5.2", "5.2 without metadata"],
)
def test_a_torrent_that_is_taken_is_waited_for_until_it_is_listed(
    server: Server, client: QBittorrent, answer: Response
) -> None:
    server.on("torrents/add", answer)
    server.on("torrents/info", listed(), listed(), listed(entry(V1)))
    assert add(client) == V1
    assert server.count("torrents/info") == 3
    [(_, _, form)] = [one for one in server.asked if one[0] == "torrents/add"]
    assert form["stopped"] == form["paused"] == form["autoTMM"] == form["useDownloadPath"] == ["False"]


DUPLICATES = [
    Response("Fails."),
    Response("Conflict", 409),
    Response(json.dumps({"success_count": 0, "failure_count": 1, "pending_count": 0, "added_torrent_ids": []})),
]


@pytest.mark.parametrize("answer", DUPLICATES, ids=["4.5", "5.2", "an object"])
def test_one_that_it_has_already_counts_as_added_and_is_tagged(
    server: Server, client: QBittorrent, answer: Response
) -> None:
    server.on("torrents/add", answer)
    # It was taken a moment ago, so it is not listed at once.
    server.on("torrents/info", listed(), listed(), listed(entry(V1)))
    assert add(client) == V1
    [(_, _, form)] = [one for one in server.asked if one[0] == "torrents/addTags"]
    assert form == {"hashes": [V1], "tags": ["dlpipe"]}


@pytest.mark.parametrize("answer", DUPLICATES, ids=["4.5", "5.2", "an object"])
def test_one_that_it_neither_takes_nor_has_is_refused(
    server: Server, client: QBittorrent, clock: Clock, answer: Response
) -> None:
    server.on("torrents/add", answer)
    server.on("torrents/info", listed(entry(OTHER)))
    with pytest.raises(TorrentRefused) as refused:
        add(client)
    assert refused.value.code == "torrent_rejected"
    assert 4 <= clock.slept_s <= 6


def test_a_file_that_it_cannot_read_is_refused(server: Server, client: QBittorrent) -> None:
    server.on("torrents/add", Response("torrent file is not valid", 415))
    with pytest.raises(TorrentRefused) as refused:
        add(client)
    assert refused.value.code == "torrent_malformed"


def test_one_that_is_taken_but_not_listed_has_its_name_all_the_same(
    server: Server, client: QBittorrent, clock: Clock
) -> None:
    server.on("torrents/add", Response("Ok."))
    server.on("torrents/info", listed(entry(OTHER)))
    assert add(client) == V1
    assert 4 <= clock.slept_s <= 6


@pytest.mark.parametrize("used", [V1, "cd" * 20], ids=["libtorrent 1", "libtorrent 2"])
def test_a_hybrid_has_the_name_that_its_libtorrent_gives_it(server: Server, client: QBittorrent, used: str) -> None:
    server.on("torrents/add", Response("Ok."))
    server.on("torrents/info", listed(entry(used)))
    assert add(client, f"magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{'cd' * 32}") == used


@pytest.mark.parametrize(("version", "word"), [("2.8.19", "pause"), ("2.11.4", "stop"), ("2.16.2", "stop")])
def test_it_is_stopped_with_the_word_of_its_version(
    server: Server, client: QBittorrent, version: str, word: str
) -> None:
    server.on("app/webapiVersion", Response(version))
    server.on("torrents/info", listed(entry(V1)))
    server.on(f"torrents/{word}", Response("", 204))
    client.stop(V1)
    assert server.count(f"torrents/{word}") == 1


# Looking.


def test_many_are_asked_for_in_one_request(server: Server, client: QBittorrent) -> None:
    names = [f"{number:040x}" for number in range(100)]
    server.on("torrents/info", listed(*map(entry, names)))
    assert set(client.torrents(names)) == set(names)
    [(_, _, form)] = server.asked
    assert set(form["hashes"][0].split("|")) == set(names)


def test_one_that_was_renamed_is_found_under_its_old_name_and_then_in_one_request(
    server: Server, client: QBittorrent
) -> None:
    renamed = entry(OTHER, infohash_v1=V1, infohash_v2=OTHER + "0" * 24)
    server.on("torrents/info", listed(), listed(renamed))
    assert client.torrents([V1])[V1].info_hash == V1
    assert server.count("torrents/info") == 2
    assert list(client.torrents([V1])) == [V1]
    assert server.count("torrents/info") == 3
    assert server.asked[-1][2]["hashes"] == [OTHER]
    server.on("torrents/delete", Response(""))
    client.delete(V1, with_files=True)
    assert server.asked[-1][2] == {"hashes": [OTHER], "deleteFiles": ["True"]}


@pytest.mark.parametrize("path", ["../evil", "a/../../b", "/etc/passwd", "a\0b"])
def test_a_file_outside_the_folder_of_its_torrent_is_refused(server: Server, client: QBittorrent, path: str) -> None:
    server.on("torrents/info", listed(entry(V1)))
    server.on("torrents/files", listed({"name": path, "size": 1, "progress": 1, "priority": 1}))
    with pytest.raises(TorrentRefused) as refused:
        client.files(V1)
    assert refused.value.code == "torrent_path_unsafe"


def test_deselected_files_are_not_ours_and_without_metadata_there_are_none(server: Server, client: QBittorrent) -> None:
    server.on("torrents/info", listed(entry(V1)))
    one = {"name": "a", "size": 1, "progress": 0.999, "priority": 7}
    server.on("torrents/files", listed(one, {**one, "name": "b", "priority": 0}), Response("", 409))
    assert [(file.path, file.complete) for file in client.files(V1)] == [("a", False)]
    assert client.files(V1) == []


# Servers that are none (an outage, never "not found").

PAGE = "<!doctype html><title>Welcome to nginx</title>"


@pytest.mark.parametrize(
    "answer",
    [
        Response(PAGE),
        Response(PAGE, 404),
        Response("Bad Gateway", 502),
        Response("Internal Server Error", 500),
        Response("", 302, headers={"Location": "/login"}),
        Response("", 204),
        Response("{}"),
        Response("null"),
        Response('"a"'),
        Response("[1]"),
        Response(json.dumps([{"hash": V1}])),
        Response(json.dumps([entry(V1, progress="soon")])),
    ],
    ids=lambda answer: f"{answer.status_code} {answer.get_data(as_text=True)[-20:]}",
)
def test_an_answer_that_is_not_qbittorrents_is_an_outage(server: Server, client: QBittorrent, answer: Response) -> None:
    server.on("torrents/info", answer)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])


@pytest.mark.parametrize("method", ["torrents/info", "torrents/add", "torrents/addTags"])
@pytest.mark.parametrize("status", [302, 500, 503])
def test_what_fails_is_not_repeated(server: Server, client: QBittorrent, method: str, status: int) -> None:
    server.on("torrents/add", Response("Fails."))
    server.on("torrents/info", listed(entry(V1)))
    server.on(method, Response("", status, headers={"Location": "/"}))
    with pytest.raises(TorrentOutage):
        add(client)
    assert server.count(method) == 1


def test_silence_is_an_outage(server: Server, client: QBittorrent) -> None:
    server.on("torrents/info", server.hang)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("torrents/info") == 1


# Logins.


def test_a_session_that_ended_is_renewed(server: Server, client: QBittorrent) -> None:
    server.on("torrents/info", Response("Forbidden", 403), listed(entry(V1)), Response("", 403), listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]
    assert list(client.torrents([V1])) == [V1]
    assert server.count("auth/login") == 2


REFUSALS = [Response("Fails."), Response("Unauthorized", 401), Response("Your IP address has been banned", 403)]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["4.5", "5.2", "banned"])
def test_a_refused_login_is_not_repeated_before_the_pause_is_over(
    server: Server, client: QBittorrent, clock: Clock, refusal: Response
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


def test_a_login_that_is_not_answered_is_tried_once_and_may_be_tried_again(server: Server, client: QBittorrent) -> None:
    server.on("torrents/info", Response("Forbidden", 403))
    server.on("auth/login", server.hang)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("auth/login") == 1
    server.ending.set()
    server.on("auth/login", Response("Ok."))
    server.on("torrents/info", Response("", 403), listed(entry(V1)))
    assert list(client.torrents([V1])) == [V1]


def test_an_api_key_is_sent_and_nobody_logs_in(server: Server, clock: Clock) -> None:
    client = QBittorrent(qbittorrent_api.make(server.url, api_key="qbt_apikey"), lambda url: b"")
    server.on("torrents/info", listed(entry(V1)), Response("", 403))
    client.torrents([V1])
    assert server.asked[0][1]["Authorization"] == "Bearer qbt_apikey"
    with pytest.raises(TorrentOutage) as outage:
        client.torrents([V1])
    assert outage.value.code == "torrent_login_refused"
    assert server.count("auth/login") == 0


def test_the_environment_lends_neither_a_proxy_nor_credentials(
    server: Server, client: QBittorrent, monkeypatch: pytest.MonkeyPatch, tmp_path: object
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
    server: Server, clock: Clock, caplog: pytest.LogCaptureFixture, status: int
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
