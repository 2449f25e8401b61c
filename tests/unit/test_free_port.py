"""Servers that tests start get ports that nobody else comes by while they are on their way."""

from __future__ import annotations

import socket

import pytest

from tests import servers


def test_no_port_is_given_twice_nor_one_of_those_that_the_kernel_gives() -> None:
    found = [servers.free_port() for _ in range(200)]
    assert len(set(found)) == len(found)
    with socket.create_server(("127.0.0.1", 0)) as given:
        assert max(found) < servers._first_of_the_kernels() <= given.getsockname()[1]


def test_a_port_that_somebody_has_is_passed_over() -> None:
    taken = servers.free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert not servers._is_free(taken)
    assert servers._is_free(taken)


def test_processes_of_a_run_take_from_shares_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        shares.append({servers.free_port() for _ in range(20)})
    assert len(set.union(*shares)) == 60
    assert [{port % 16 for port in share} for share in shares] == [{0}, {1}, {2}]
