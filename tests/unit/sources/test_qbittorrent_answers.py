"""What we make of qBittorrent's answers: versions that differ, and servers that are none."""

from __future__ import annotations

import json

import pytest
from werkzeug import Response

from dlpipe.core.errors import TorrentOutage, TorrentRefused
from dlpipe.sources.qbittorrent import QBittorrent
from tests.webapi import OTHER, V1, Clock, WebApi, add, entry, listed

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
    server: WebApi, client: QBittorrent, answer: Response
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
    server: WebApi, client: QBittorrent, answer: Response
) -> None:
    server.on("torrents/add", answer)
    # It was taken a moment ago, so it is not listed at once.
    server.on("torrents/info", listed(), listed(), listed(entry(V1)))
    assert add(client) == V1
    [(_, _, form)] = [one for one in server.asked if one[0] == "torrents/addTags"]
    assert form == {"hashes": [V1], "tags": ["dlpipe"]}


@pytest.mark.parametrize("answer", DUPLICATES, ids=["4.5", "5.2", "an object"])
def test_one_that_it_neither_takes_nor_has_is_refused(
    server: WebApi, client: QBittorrent, clock: Clock, answer: Response
) -> None:
    server.on("torrents/add", answer)
    server.on("torrents/info", listed(entry(OTHER)))
    with pytest.raises(TorrentRefused) as refused:
        add(client)
    assert refused.value.code == "torrent_rejected"
    assert 4 <= clock.slept_s <= 6


def test_a_file_that_it_cannot_read_is_refused(server: WebApi, client: QBittorrent) -> None:
    server.on("torrents/add", Response("torrent file is not valid", 415))
    with pytest.raises(TorrentRefused) as refused:
        add(client)
    assert refused.value.code == "torrent_malformed"


def test_one_that_is_taken_but_not_listed_has_its_name_all_the_same(
    server: WebApi, client: QBittorrent, clock: Clock
) -> None:
    server.on("torrents/add", Response("Ok."))
    server.on("torrents/info", listed(entry(OTHER)))
    assert add(client) == V1
    assert 4 <= clock.slept_s <= 6


@pytest.mark.parametrize("used", [V1, "cd" * 20], ids=["libtorrent 1", "libtorrent 2"])
def test_a_hybrid_has_the_name_that_its_libtorrent_gives_it(server: WebApi, client: QBittorrent, used: str) -> None:
    server.on("torrents/add", Response("Ok."))
    server.on("torrents/info", listed(entry(used)))
    assert add(client, f"magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{'cd' * 32}") == used


@pytest.mark.parametrize(("version", "word"), [("2.8.19", "pause"), ("2.11.4", "stop"), ("2.16.2", "stop")])
def test_it_is_stopped_with_the_word_of_its_version(
    server: WebApi, client: QBittorrent, version: str, word: str
) -> None:
    server.on("app/webapiVersion", Response(version))
    server.on("torrents/info", listed(entry(V1)))
    server.on(f"torrents/{word}", Response("", 204))
    client.stop(V1)
    assert server.count(f"torrents/{word}") == 1


# Looking.


def test_many_are_asked_for_in_one_request(server: WebApi, client: QBittorrent) -> None:
    names = [f"{number:040x}" for number in range(100)]
    server.on("torrents/info", listed(*map(entry, names)))
    assert set(client.torrents(names)) == set(names)
    [(_, _, form)] = server.asked
    assert set(form["hashes"][0].split("|")) == set(names)


def test_one_that_was_renamed_is_found_under_its_old_name_and_then_in_one_request(
    server: WebApi, client: QBittorrent
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
def test_a_file_outside_the_folder_of_its_torrent_is_refused(server: WebApi, client: QBittorrent, path: str) -> None:
    server.on("torrents/info", listed(entry(V1)))
    server.on("torrents/files", listed({"name": path, "size": 1, "progress": 1, "priority": 1}))
    with pytest.raises(TorrentRefused) as refused:
        client.files(V1)
    assert refused.value.code == "torrent_path_unsafe"


def test_deselected_files_are_not_ours_and_without_metadata_there_are_none(server: WebApi, client: QBittorrent) -> None:
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
        Response("Internal WebApi Error", 500),
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
def test_an_answer_that_is_not_qbittorrents_is_an_outage(server: WebApi, client: QBittorrent, answer: Response) -> None:
    server.on("torrents/info", answer)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])


@pytest.mark.parametrize("method", ["torrents/info", "torrents/add", "torrents/addTags"])
@pytest.mark.parametrize("status", [302, 500, 503])
def test_what_fails_is_not_repeated(server: WebApi, client: QBittorrent, method: str, status: int) -> None:
    server.on("torrents/add", Response("Fails."))
    server.on("torrents/info", listed(entry(V1)))
    server.on(method, Response("", status, headers={"Location": "/"}))
    with pytest.raises(TorrentOutage):
        add(client)
    assert server.count(method) == 1


def test_a_redirect_is_not_followed(server: WebApi, client: QBittorrent) -> None:
    server.on("torrents/info", Response("", 307, headers={"Location": "elsewhere"}))
    server.on("torrents/elsewhere", listed(entry(V1)))
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("torrents/elsewhere") == 0


@pytest.mark.parametrize(("said", "free"), [((0, 0, 7), 7), ((0,), 0), ((-1,), None)], ids=["late", "full", "unknown"])
def test_free_space_is_waited_for_until_it_is_measured(
    server: WebApi, client: QBittorrent, said: tuple[int, ...], free: int | None
) -> None:
    server.on(
        "sync/maindata",
        *(Response(json.dumps({"server_state": {"free_space_on_disk": one}}), content_type="application/json")
          for one in said),
    )  # fmt: skip
    assert client.free_space() == free


def test_asking_for_nothing_asks_nobody(server: WebApi, client: QBittorrent) -> None:
    assert client.torrents([]) == {}
    assert server.asked == []


def test_silence_is_an_outage(server: WebApi, client: QBittorrent) -> None:
    server.on("torrents/info", server.hang)
    with pytest.raises(TorrentOutage):
        client.torrents([V1])
    assert server.count("torrents/info") == 1
