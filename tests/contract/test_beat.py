"""Periodic tasks: one at a time, on a real server; without one, all of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest
import redis

from dlpipe.lease.beat import PREFIX, SingleFlight
from tests.servers import Valkey, wait_until


def test_while_one_runs_the_other_is_told_not_to(client: redis.Redis) -> None:
    with SingleFlight(client, "dispatch", 60) as mine, SingleFlight(client, "dispatch", 60) as other:
        assert (mine, other) == (True, False)
        with SingleFlight(client, "reconcile", 60) as third:
            assert third
    with SingleFlight(client, "dispatch", 60) as mine:
        assert mine


def test_who_may_not_run_leaves_the_claim_of_the_other_alone(client: redis.Redis) -> None:
    with SingleFlight(client, "dispatch", 60):
        for _ in range(2):
            with SingleFlight(client, "dispatch", 60) as other:
                assert not other


def test_the_claim_ends_by_itself_and_then_is_not_taken_from_its_next_holder(client: redis.Redis) -> None:
    with SingleFlight(client, "dispatch", 60) as mine:
        assert mine
        assert 0 < client.pttl(PREFIX + "dispatch") <= 60_000
        client.set(PREFIX + "dispatch", "the next one")
    assert client.get(PREFIX + "dispatch") == b"the next one"


def test_the_claim_ends_with_a_task_that_fails(client: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), SingleFlight(client, "dispatch", 60):
        raise ZeroDivisionError
    assert not client.exists(PREFIX + "dispatch")


def test_turns_that_piled_up_are_skipped_until_the_rest_is_over(client: redis.Redis) -> None:
    with SingleFlight(client, "dispatch", 60, rest_s=0.2) as mine:
        assert mine
    with SingleFlight(client, "dispatch", 60, rest_s=0.2) as next_one:
        assert not next_one
    wait_until(lambda: not client.exists(PREFIX + "dispatch"), "the rest to be over")
    with SingleFlight(client, "dispatch", 60, rest_s=0.2) as later:
        assert later


def test_after_a_turn_that_failed_nobody_rests(client: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), SingleFlight(client, "dispatch", 60, rest_s=60):
        raise ZeroDivisionError
    with SingleFlight(client, "dispatch", 60, rest_s=60) as mine:
        assert mine


def test_a_rest_that_is_somebody_elses_turn_by_now_is_left_alone(client: redis.Redis) -> None:
    with SingleFlight(client, "dispatch", 60, rest_s=0.01):
        client.set(PREFIX + "dispatch", "the next one", px=60_000)
    assert client.get(PREFIX + "dispatch") == b"the next one"
    assert client.pttl(PREFIX + "dispatch") > 1_000


def test_without_redis_the_task_runs() -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        server = Valkey(directory)
        with server.client() as client, SingleFlight(client, "reconcile", 60) as mine:
            assert mine


def test_the_turn_of_a_killed_process_passes_to_the_next_at_once(client: redis.Redis) -> None:
    died = subprocess.run(
        [sys.executable, "-c", "from dlpipe.lease import owner; print(owner.current())"],
        capture_output=True,
        text=True,
        check=True,
    )
    client.set(PREFIX + "reconcile", f"{died.stdout.strip()}.token", px=60_000)
    with SingleFlight(client, "reconcile", 60) as mine:
        assert mine
    client.set(PREFIX + "reconcile", "of another machine", px=60_000)
    with SingleFlight(client, "reconcile", 60) as mine:
        assert not mine


def test_a_turn_that_could_not_be_given_back_is_given_back_at_the_next(client: redis.Redis) -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server, server.client() as line:
        with SingleFlight(line, "reconcile", 60) as mine:
            assert mine
            server.kill()
        server.start()
        assert line.exists(PREFIX + "reconcile"), "it is kept in the append-only file"
        with SingleFlight(line, "reconcile", 60) as again:
            assert again
        assert not line.exists(PREFIX + "reconcile")
