"""The real server that the contract suites run on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import redis

from tests.servers import Valkey


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    """A client of the real server, which is empty at the start of each test."""
    with valkey.client() as client:
        client.flushall()
        yield client
