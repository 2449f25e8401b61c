"""For how long a lease can be trusted. LEASE-1, LEASE-3, LEASE-4."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from dlpipe.core.errors import LeaseLost
from dlpipe.lease.heartbeat import Heartbeat
from dlpipe.lease.held import HeldLease, boot_clock
from tests.servers import wait_until

TTL_S = 100.0


class World:
    """Redis, the database and the time, as the heartbeat sees them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.redis: dict[str, bool | None] = {}  # by token; absent: still ours
        self.redis_up = True
        self.rows_up = True
        self.foreign: set[str] = set()
        self.slow_s = 0.0
        self.extended: list[list[tuple[str, str]]] = []
        self.mirrored: list[list[tuple[str, int]]] = []
        self.heartbeat = Heartbeat(self.extend, self.mirror, TTL_S, 40.0, self.clock)

    def clock(self) -> float:
        return self.now

    def extend(self, held: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.now += self.slow_s
        self.extended.append(list(held))
        if not self.redis_up:
            raise ConnectionError
        return [self.redis.get(token, True) for _, token in held]

    def mirror(self, claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        assert ttl_s == TTL_S
        self.mirrored.append(list(claims))
        if not self.rows_up:
            raise ConnectionError
        return self.foreign

    def lease(self, name: str = "j", fence: int | None = None) -> HeldLease:
        lease = HeldLease(name, f"token-{name}", TTL_S, self.now, self.clock)
        if fence is not None:
            lease.bind(fence)
        self.heartbeat.add(lease)
        return lease


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.heartbeat.stop()


def is_lost(lease: HeldLease) -> bool:
    try:
        lease.check()
    except LeaseLost:
        return True
    return False


# ── the local deadline ──


def test_a_lease_is_lost_after_the_longest_hold_however_well_it_is_renewed(world: World) -> None:
    """The heartbeat of a process lives on beside work that hangs: else the job would be held for ever."""
    lease = HeldLease("j", "t", TTL_S, world.now, world.clock, hold_s=250.0)
    world.heartbeat.add(lease)
    for world.now in (50.0, 100.0, 150.0, 200.0, 249.0):
        assert world.heartbeat.beat()
        assert not is_lost(lease)
    world.now = 250.0
    asked = len(world.extended)
    world.heartbeat.beat()
    assert is_lost(lease)
    assert len(world.extended) == asked, "nothing of it is renewed any more"


def test_a_process_stopped_past_the_ttl_notices_at_its_next_check(world: World) -> None:
    lease = world.lease()
    world.now = TTL_S - 0.001
    assert not is_lost(lease)
    world.now = TTL_S
    assert is_lost(lease)  # no heartbeat has run


def test_time_counts_from_before_the_renewal_was_sent(world: World) -> None:
    lease = world.lease()
    world.now, world.slow_s = 40, 30  # the answer came at 70
    assert world.heartbeat.beat()
    world.now = 139.9
    assert not is_lost(lease)
    world.now = 140
    assert is_lost(lease)


def test_an_answer_that_comes_after_the_end_does_not_bring_the_lease_back(world: World) -> None:
    lease = world.lease()
    world.now, world.slow_s = 99, 300
    world.heartbeat.beat()
    assert is_lost(lease)


def test_what_is_lost_stays_lost(world: World) -> None:
    lease = world.lease()
    world.now = TTL_S
    assert is_lost(lease)
    world.now = 0  # whatever happens
    lease.renewed(world.now)
    assert is_lost(lease)
    world.heartbeat.beat()
    assert world.extended == []


def test_a_lease_over_here_is_not_renewed_even_when_nobody_looked(world: World) -> None:
    world.lease()
    world.now = TTL_S
    assert world.heartbeat.beat()
    assert world.extended == []


# ── Redis ──


def test_a_key_that_is_gone_or_foreign_costs_the_lease_at_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    kept, gone = world.lease("kept", 1), world.lease("gone", 2)
    world.redis["token-gone"] = False
    assert world.heartbeat.beat()
    assert is_lost(gone)
    assert not is_lost(kept)
    assert world.mirrored == [[("kept", 1)]]
    assert "gone" in caplog.text
    world.heartbeat.beat()
    assert world.extended[-1] == [("kept", "token-kept")]


def test_while_redis_is_away_the_lease_lasts_for_its_time_only(world: World) -> None:
    lease = world.lease()
    world.now = 40
    assert world.heartbeat.beat()
    world.redis_up = False
    world.now = 139
    assert not world.heartbeat.beat()
    assert not is_lost(lease)
    world.redis_up = True
    assert world.heartbeat.beat()
    world.now = 238
    assert not is_lost(lease)
    world.now = 239
    assert is_lost(lease)


def test_an_error_for_one_lease_is_neither_renewal_nor_loss(world: World) -> None:
    odd, good = world.lease("odd", 1), world.lease("good", 2)
    world.redis["token-odd"] = None
    world.now = 40
    assert not world.heartbeat.beat()
    assert world.mirrored == [[("good", 2)]]
    assert not is_lost(odd)
    world.now = TTL_S
    assert is_lost(odd)
    assert not is_lost(good)


# ── the mirror ──


def test_an_overtaken_fence_costs_the_lease_at_once(world: World) -> None:
    lease, other = world.lease("j", 3), world.lease("k", 4)
    world.foreign = {"j"}
    assert world.heartbeat.beat()
    assert is_lost(lease)
    assert not is_lost(other)


@pytest.mark.parametrize("then", [4, None], ids=["the next one", "not known yet"])
def test_a_fence_that_its_holder_moves_on_during_a_beat_costs_nothing(world: World, then: int | None) -> None:
    """What the beat asked for was its own a moment ago: the row is now under the fence that it claimed onward."""
    lease, other = world.lease("j", 3), world.lease("k", 1)
    world.foreign = {"j", "k"}
    mirror = world.heartbeat._mirror
    assert mirror is not None

    def moved(claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        lease.bind(then)
        return mirror(claims, ttl_s)

    world.heartbeat._mirror = moved
    world.now = 40
    assert world.heartbeat.beat()
    assert is_lost(other)  # whose fence stayed, and is overtaken
    world.now = 139
    assert not is_lost(lease)  # and the beat counts
    world.heartbeat._mirror = mirror
    world.heartbeat.beat()
    assert is_lost(lease) == (then is not None)  # under that fence it is overtaken as any other


def test_while_nobody_can_say_which_fence_it_has_a_lease_is_renewed_without_its_row(world: World) -> None:
    lease = world.lease("j", 3)
    lease.bind(None)
    world.foreign, world.now = {"j"}, 40
    assert world.heartbeat.beat()
    assert world.mirrored == []
    world.now = 139
    assert not is_lost(lease)


# ── may it go on? ──


def test_a_holder_may_go_on_until_its_lease_is_lost_or_its_process_is_to_end(world: World) -> None:
    ending = False
    asked = [world.lease(name, 1) for name in "abc"]
    last = HeldLease("d", "t", TTL_S, world.now, world.clock, lambda: ending)
    assert all(lease.may_go_on() for lease in (*asked, last))
    asked[0].give_up()
    asked[1].lose("the test took it away")
    ending = True
    assert [lease.may_go_on() for lease in (*asked, last)] == [False, False, True, False]
    asked[0].check_held()  # what is done is recorded all the same
    last.check()
    world.now = TTL_S
    assert not asked[2].may_go_on()  # its time is over, which nobody has noticed yet


def test_a_lease_that_is_not_bound_needs_no_row(world: World) -> None:
    lease = world.lease()
    world.foreign, world.rows_up, world.now = {"j"}, False, 40
    assert world.heartbeat.beat()
    assert world.mirrored == []
    world.now = 139
    assert not is_lost(lease)


def test_while_the_database_is_away_a_bound_lease_lasts_for_its_time_only(world: World) -> None:
    bound, free = world.lease("bound", 1), world.lease("free")
    world.rows_up, world.now = False, 40
    assert not world.heartbeat.beat()
    world.now = TTL_S - 1
    assert not is_lost(bound)
    world.now = TTL_S
    assert is_lost(bound)
    assert not is_lost(free)


def test_without_a_mirror_redis_is_enough() -> None:
    world = World()
    heartbeat = Heartbeat(world.extend, None, TTL_S, 40.0, world.clock)
    lease = HeldLease("j", "t", TTL_S, 0.0, world.clock)
    lease.bind(1)
    heartbeat.add(lease)
    world.now = 40
    assert heartbeat.beat()
    world.now = 139
    assert not is_lost(lease)
    heartbeat.stop()


# ── what is held ──


def test_what_was_removed_is_renewed_no_more(world: World) -> None:
    lease, other = world.lease("j"), world.lease("k")
    world.heartbeat.remove(lease)
    world.heartbeat.beat()
    assert world.extended == [[("k", other.token)]]
    world.heartbeat.remove(other)
    assert world.heartbeat.beat()
    assert len(world.extended) == 1


def test_a_lease_released_during_its_renewal_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    def extend(held: Sequence[tuple[str, str]]) -> list[bool | None]:
        heartbeat.remove(lease)
        return [False]

    heartbeat = Heartbeat(extend, None, TTL_S, 40.0, world.clock)
    lease = HeldLease("j", "t", TTL_S, 0.0, world.clock)
    heartbeat.add(lease)
    with caplog.at_level(logging.INFO):
        assert heartbeat.beat()
    assert caplog.text == ""
    heartbeat.stop()


# ── the thread ──


class Beats:
    """Counts what the thread does."""

    def __init__(self, renew_s: float) -> None:
        self.count = 0
        self.heartbeat = Heartbeat(self.extend, None, 1000.0, renew_s)

    def extend(self, held: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.count += 1
        return [True] * len(held)

    def hold(self, name: str = "j") -> HeldLease:
        lease = HeldLease(name, name, 1000.0, boot_clock(), boot_clock)
        self.heartbeat.add(lease)
        return lease


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dlpipe-heartbeat"}


def test_one_daemon_thread_serves_all_leases_and_starts_with_the_first() -> None:
    others = threads()
    beats = Beats(0.01)
    assert threads() == others
    beats.hold("j")
    beats.hold("k")
    assert [thread.daemon for thread in threads() - others] == [True]
    wait_until(lambda: beats.count > 3, "beats")
    beats.heartbeat.stop()
    assert threads() == others


def test_stopping_does_not_wait_for_the_next_beat() -> None:
    others = threads()
    beats = Beats(400.0)
    beats.hold()
    before = time.monotonic()
    beats.heartbeat.stop(timeout_s=60)
    assert time.monotonic() - before < 30
    assert threads() == others
    beats.heartbeat.stop()


def test_a_lease_taken_after_the_end_starts_the_thread_again() -> None:
    beats = Beats(0.01)
    beats.hold()
    beats.heartbeat.stop()
    count = beats.count
    beats.hold()
    wait_until(lambda: beats.count > count, "a beat")
    beats.heartbeat.stop()


class Pauses(threading.Event):
    """Waits no time at all, and ends the thread's loop after a few pauses, which it notes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.noted: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.noted.append(timeout)
        self.left -= 1
        return self.left < 0


def test_after_a_failure_it_tries_again_soon(world: World) -> None:
    world.lease(fence=1)
    world.rows_up = False
    failing, settled = Pauses(2), Pauses(2)
    world.heartbeat._run(failing)
    assert failing.noted == [40.0, 1.0, 1.0]
    world.rows_up = True
    world.heartbeat._run(settled)
    assert settled.noted == [40.0, 40.0, 40.0]


def test_the_thread_outlives_a_fault_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = Beats(0.01)
    calls: list[int] = []

    def faulty() -> bool:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(beats.heartbeat, "beat", faulty)
    beats.hold()
    wait_until(lambda: len(calls) > 2, "more beats")
    beats.heartbeat.stop()


def test_the_clock_also_counts_sleep_where_the_platform_can() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()
    assert 0 <= boot_clock() - before < 60


FORK = """
import os, signal
from dlpipe.lease.heartbeat import Heartbeat
from dlpipe.lease.held import HeldLease, boot_clock
import threading
beats = []
heartbeat = Heartbeat(lambda held: beats.append(list(held)) or [True] * len(held), None, 1000.0, 0.01)
heartbeat.add(HeldLease("parent", "p", 1000.0, boot_clock(), boot_clock))
heartbeat._lock.acquire()  # as if the other thread were at work at the moment of the fork
if os.fork() == 0:
    signal.alarm(40)  # it may wait for a lock that nobody will ever release
    beats.clear()
    seen = threading.Event()
    heartbeat.add(HeldLease("child", "c", 1000.0, boot_clock(), boot_clock))
    for _ in range(2000):
        if len(beats) > 2 or seen.wait(0.01):
            break
    print(all(beat == [("child", "c")] for beat in beats), len(beats) > 2, flush=True)
    os._exit(0)
heartbeat._lock.release()
os.wait()
"""


def test_a_forked_child_renews_its_own_leases_and_not_its_parent_s() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True"], done.stderr
