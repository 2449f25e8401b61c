"""Real workers on a real broker, and a web server that does it right."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Choice
from tests.fleet import QUICK, Fleet
from tests.servers import Valkey
from tests.shelf import Shelf
from tests.webserver import WebServer


@pytest.fixture(scope="module")
def broker() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.fixture
def fleet(
    broker: Valkey, tmp_path: Path, choice: Choice, engine_settings: dict[str, str], shelf: Shelf
) -> Iterator[Fleet]:
    """On the engines of the run; the Redis is where leases are, and by itself the broker."""
    with broker.client() as client:
        client.flushall()
    with Fleet(tmp_path / "home", broker, shelf, **QUICK, **engine_settings) as fleet:
        yield fleet
        if choice.broker != "redis":
            assert_without_messages(broker)


def assert_without_messages(server: Valkey) -> None:
    """Another broker had them all: here is nothing but what dlpipe itself keeps in Redis."""
    with server.client() as client:
        assert [key for key in client.scan_iter() if not key.startswith(b"dlpipe:")] == []
