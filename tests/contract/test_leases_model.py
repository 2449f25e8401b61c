"""The lock against a model: two owners, one job, every order of events. LEASE-1, LEASE-4."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dlpipe.core.errors import LeaseBusy, LeaseLost
from dlpipe.core.ports import Lease
from dlpipe.lease.lock import PREFIX, RedisLeases

TTL_S = 100
KEY = PREFIX + "j"
owners = st.sampled_from(["a", "b"])


class Model(RuleBasedStateMachine):
    client: redis.Redis

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.now = 0.0
        self.leases = {name: RedisLeases(self.client, name, TTL_S, 40, clock=self.clock) for name in "ab"}
        self.blocks: dict[str, AbstractContextManager[Lease]] = {}
        self.held: dict[str, Lease] = {}
        # The model: whose token Redis has, until when each trusts its lease, and who found it lost.
        self.holder: str | None = None
        self.until: dict[str, float] = {}
        self.lost: set[str] = set()

    def clock(self) -> float:
        return self.now

    @rule(owner=owners)
    def acquire(self, owner: str) -> None:
        if owner in self.held:
            return
        block = self.leases[owner].hold("j")
        if self.holder is not None:
            with pytest.raises(LeaseBusy):
                block.__enter__()
            return
        self.held[owner] = block.__enter__()
        self.blocks[owner] = block
        self.holder, self.until[owner] = owner, self.now + TTL_S

    @rule(owner=owners)
    def renew(self, owner: str) -> None:
        # Short, so that a renewal which is none shows.
        short = self.client.pexpire(KEY, 50_000)
        self.leases[owner].heartbeat.beat()
        renewed = False
        if owner in self.held and owner not in self.lost:
            if self.now >= self.until[owner] or self.holder != owner:
                self.lost.add(owner)
            else:
                self.until[owner], renewed = self.now + TTL_S, True
        if short:
            assert (self.client.pttl(KEY) > 60_000) is renewed

    @precondition(lambda self: self.held)
    @rule(owner=owners)
    def release(self, owner: str) -> None:
        if owner not in self.held:
            return
        del self.held[owner]
        self.blocks.pop(owner).__exit__(None, None, None)
        self.lost.discard(owner)
        if self.holder == owner:
            self.holder = None

    @rule(seconds=st.sampled_from([1, 30, TTL_S - 1, TTL_S]))
    def time_passes_here(self, seconds: int) -> None:
        """Redis may be slower than we are: its key then outlives our trust in it."""
        self.now += seconds

    @rule()
    def key_expires(self) -> None:
        self.client.pexpire(KEY, 0)
        self.holder = None

    @rule()
    def flush(self) -> None:
        self.client.flushall()
        self.holder = None

    @invariant()
    def redis_knows_the_holder(self) -> None:
        if not hasattr(self, "held"):
            return
        value = self.client.get(KEY)
        assert value == (None if self.holder is None else self.held[self.holder].token.encode())
        assert self.leases["a"].live(["j"]) == ({"j"} if self.holder else set())

    @invariant()
    def each_knows_when_its_lease_is_lost(self) -> None:
        for owner, lease in getattr(self, "held", {}).items():
            if self.now >= self.until[owner]:
                self.lost.add(owner)
            if owner in self.lost:
                with pytest.raises(LeaseLost):
                    lease.check()
            else:
                lease.check()

    def teardown(self) -> None:
        for block in getattr(self, "blocks", {}).values():
            block.__exit__(None, None, None)
        for leases in getattr(self, "leases", {}).values():
            leases.close()


def test_the_lock_behaves_like_its_model(client: redis.Redis) -> None:
    run_state_machine_as_test(
        type("OnTheServer", (Model,), {"client": client}),
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
