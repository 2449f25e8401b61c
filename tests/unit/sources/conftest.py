"""A web server that answers as qBittorrent's Web API does, or as told, and a client of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from dlpipe.sources import qbittorrent_api
from dlpipe.sources.qbittorrent import QBittorrent
from tests.webapi import Clock, WebApi


@pytest.fixture
def server(httpserver: HTTPServer) -> Iterator[WebApi]:
    server = WebApi(httpserver.url_for("").rstrip("/"))
    server.on("auth/login", Response("Ok.", headers={"Set-Cookie": "SID=x"}))
    server.on("app/webapiVersion", Response("2.8.19"))
    server.on("torrents/addTags", Response(""))
    httpserver.expect_request(re.compile("/.*")).respond_with_handler(server.answer)
    yield server
    server.ending.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server: WebApi, clock: Clock) -> QBittorrent:
    api = qbittorrent_api.make(server.url, "admin", "hunter2-secret", read_s=1, monotonic_s=clock)
    return QBittorrent(api, lambda url: b"", sleep=clock.sleep)
