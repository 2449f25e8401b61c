"""The port Leases, on a real server. LEASE-1, LEASE-4; the fence is the ledger's matter (LEASE-2)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe.core.errors import LeaseBusy, LeaseLost, LeaseUnavailable, Misconfigured, WorkerEnding
from dlpipe.core.ports import Leases
from dlpipe.lease.heartbeat import Mirror
from dlpipe.lease.lock import PREFIX, RedisLeases
from tests.servers import Valkey, wait_until

TTL_S = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., RedisLeases]


@pytest.fixture
def make(client: redis.Redis, clock: Clock) -> Iterator[Make]:
    """Make the leases of one worker; the heartbeat beats when the test says so."""
    made: list[RedisLeases] = []

    def one(owner: str = "a", mirror: Mirror | None = None, redis: redis.Redis | None = None) -> RedisLeases:
        leases = RedisLeases(redis or client, owner, TTL_S, 40.0, mirror, clock)
        made.append(leases)
        return leases

    yield one
    for leases in made:
        leases.close()


def key(job_id: str) -> str:
    return PREFIX + job_id


# ── taking and giving back ──


def test_a_job_has_one_holder_at_a_time(make: Make) -> None:
    a, b = make("a"), make("b")
    with a.hold("j1"):
        with pytest.raises(LeaseBusy), b.hold("j1"):
            pass
        with pytest.raises(LeaseBusy), a.hold("j1"):  # nor twice in one process
            pass
        with b.hold("j2"):
            assert a.live(["j1", "j2", "j3"]) == {"j1", "j2"}
    with b.hold("j1") as lease:
        lease.check()
    assert a.live(["j1"]) == set()
    assert a.live([]) == set()


def test_of_many_who_ask_at_once_one_gets_the_lease(make: Make) -> None:
    workers = [make(f"w{n}") for n in range(8)]
    start, done = threading.Barrier(8), threading.Barrier(8)

    def work(leases: RedisLeases) -> int:
        start.wait(20)
        with ExitStack() as stack:
            try:
                stack.enter_context(leases.hold("j"))
                return 1
            except LeaseBusy:
                return 0
            finally:
                done.wait(20)  # nobody gives back before all have asked

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, workers)) == 1


def test_a_lease_ends_with_its_block_also_when_that_fails(make: Make) -> None:
    a = make()
    with pytest.raises(ZeroDivisionError), a.hold("j"):
        raise ZeroDivisionError
    assert a.live(["j"]) == set()
    assert a.heartbeat.beat()


def test_the_key_has_the_ttl_and_the_token(make: Make, client: redis.Redis) -> None:
    with make("node.1.2").hold("j") as lease:
        assert client.get(key("j")) == lease.token.encode()
        assert lease.token.startswith("node.1.2.")
        assert TTL_S * 1000 - 10_000 < client.pttl(key("j")) <= TTL_S * 1000


def test_each_lease_has_its_own_token(make: Make) -> None:
    a = make()
    with a.hold("j") as first:
        pass
    with a.hold("j") as second:
        assert first.token != second.token


def test_what_was_given_back_is_renewed_no_more(make: Make, client: redis.Redis) -> None:
    a = make()
    with a.hold("j") as lease:
        pass
    client.set(key("j"), lease.token, px=5_000)
    a.heartbeat.beat()
    assert client.pttl(key("j")) <= 5_000


def test_the_time_of_a_lease_counts_from_before_it_was_asked_for(
    make: Make, client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = client.set

    def slowly(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        clock.now += 30
        return answer

    monkeypatch.setattr(client, "set", slowly)
    with make().hold("j") as lease:
        clock.now += TTL_S - 30 - 1
        lease.check()
        clock.now += 1
        with pytest.raises(LeaseLost):
            lease.check()


FORK = """
import os, sys, redis
from dlpipe.lease.lock import PREFIX, RedisLeases
client = redis.Redis.from_url(sys.argv[1])
with RedisLeases(client).hold("j") as lease:
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(client.get(PREFIX + "j") == lease.token.encode())
"""


def test_a_forked_child_that_leaves_the_block_frees_nothing(client: redis.Redis, valkey: Valkey) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, valkey.url], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def test_an_owner_given_as_a_function_is_asked_at_each_lease(client: redis.Redis) -> None:
    names = iter(["first", "second"])
    leases = RedisLeases(client, lambda: next(names))
    with leases.hold("j") as lease:
        assert lease.token.startswith("first.")
    with leases.hold("j") as lease:
        assert lease.token.startswith("second.")
    leases.close()


def test_with_a_client_that_decodes_answers_it_is_the_same(make: Make, valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as decoding:
        a = make(redis=decoding)
        with a.hold("j") as lease:
            assert a.heartbeat.beat()
            lease.check()
        assert a.live(["j"]) == set()


class CutConnection(redis.UnixDomainSocketConnection):
    """Breaks after a command arrived and before its answer does, once for each error in `errors`."""

    errors: ClassVar[list[Exception]] = []

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().read_response(*args, **kwargs)
        if self.errors:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise self.errors.pop()
        return answer


def cut_client(server: Valkey, retries: int, **options: Any) -> redis.Redis:
    pool = redis.ConnectionPool(
        connection_class=CutConnection, path=server.socket, retry=Retry(NoBackoff(), retries), **options
    )
    client = redis.Redis(connection_pool=pool)
    client.ping()  # so that the next answer is that of the next command
    return client


@pytest.mark.parametrize("decode", [False, True])
def test_a_lost_reply_to_the_acquisition_is_no_foreign_key(make: Make, valkey: Valkey, decode: bool) -> None:
    with cut_client(valkey, 1, decode_responses=decode) as client:
        a = make(redis=client)
        CutConnection.errors.append(redis.ConnectionError("cut"))
        with a.hold("j") as lease:
            assert not CutConnection.errors
            lease.check()
        assert a.live(["j"]) == set()
        with make("b").hold("j"), pytest.raises(LeaseBusy), a.hold("j"):
            pass
        client.connection_pool.disconnect()


def test_an_acquisition_that_timed_out_keeps_nobody_out(make: Make, valkey: Valkey) -> None:
    with cut_client(valkey, 0) as client:
        a = make(redis=client)
        CutConnection.errors.append(redis.TimeoutError("no answer in time"))
        with pytest.raises(LeaseUnavailable), a.hold("j"):
            pass
        assert a.live(["j"]) == set()
        client.connection_pool.disconnect()


def test_who_gives_up_stops_at_the_next_check_and_frees_the_job_at_the_end(make: Make, client: redis.Redis) -> None:
    a = make()
    with a.hold("j") as lease:
        client.pexpire(key("j"), 5_000)
        a.give_up()
        with pytest.raises(WorkerEnding):
            lease.check()
        assert 0 < client.pttl(key("j")) <= 5_000  # still locked, as the work has not stopped yet
    assert a.live(["j"]) == set()


def test_who_gives_up_may_record_what_is_done_as_long_as_the_lease_is_its_own(
    make: Make, client: redis.Redis, clock: Clock
) -> None:
    a = make()
    with a.hold("j") as lease:
        a.give_up()
        clock.now += TTL_S - 1
        a.heartbeat.beat()
        clock.now += TTL_S - 1
        lease.check_held()  # renewed meanwhile: nobody else may begin while the work has not stopped
        client.set(key("j"), "somebody.else")
        a.heartbeat.beat()
        with pytest.raises(LeaseLost) as lost:
            lease.check_held()
        assert lost.value.code == "lease_lost"


@pytest.mark.parametrize("end", ["give_no_more", "give_up"])
def test_who_is_to_end_carries_out_what_it_holds_and_goes_on_with_nothing(make: Make, end: str) -> None:
    a = make()
    with a.hold("j") as lease, a.hold("k") as other:
        assert lease.may_go_on()
        getattr(a, end)()
        assert not lease.may_go_on()
        assert not other.may_go_on()
        lease.check_held()
        if end == "give_no_more":
            lease.check()


def test_who_has_lost_its_lease_goes_on_with_nothing(make: Make, client: redis.Redis, clock: Clock) -> None:
    a = make()
    with a.hold("j") as lease, a.hold("k") as other:
        client.set(key("j"), "somebody.else")
        a.heartbeat.beat()
        assert (lease.may_go_on(), other.may_go_on()) == (False, True)
        clock.now += TTL_S
        assert not other.may_go_on()


# ── renewing ──


def test_renewal_starts_the_ttl_anew(make: Make, client: redis.Redis, clock: Clock) -> None:
    a = make()
    with a.hold("j") as lease:
        client.pexpire(key("j"), 5_000)
        clock.now += TTL_S - 1
        assert a.heartbeat.beat()
        clock.now += TTL_S - 1
        lease.check()
        assert client.pttl(key("j")) > 50_000


def test_one_beat_renews_every_lease_of_the_process(make: Make, client: redis.Redis) -> None:
    a = make()
    with a.hold("j1"), a.hold("j2"), a.hold("j3"):
        for job in ("j1", "j2", "j3"):
            client.pexpire(key(job), 5_000)
        assert a.heartbeat.beat()
        assert all(client.pttl(key(job)) > 50_000 for job in ("j1", "j2", "j3"))


def test_an_expired_lease_is_lost_and_not_brought_back(make: Make, client: redis.Redis) -> None:
    a = make()
    with a.hold("j") as lease:
        client.pexpire(key("j"), 1)
        wait_until(lambda: not client.exists(key("j")), "the key to run out")
        assert a.heartbeat.beat()
        with pytest.raises(LeaseLost):
            lease.check()
        assert not client.exists(key("j"))


def test_a_foreign_lease_is_neither_renewed_nor_released(make: Make, client: redis.Redis) -> None:
    a, b = make("a"), make("b")
    with ExitStack() as other:
        with a.hold("j") as lease:
            client.delete(key("j"))
            theirs = other.enter_context(b.hold("j"))
            client.pexpire(key("j"), 5_000)
            a.heartbeat.beat()
            assert 0 < client.pttl(key("j")) <= 5_000
            with pytest.raises(LeaseLost):
                lease.check()
        assert client.get(key("j")) == theirs.token.encode()
        b.heartbeat.beat()
        theirs.check()


def test_after_flushall_the_next_renewal_finds_every_lease_lost(make: Make, client: redis.Redis) -> None:
    a = make()
    with a.hold("j1") as one, a.hold("j2") as two:
        client.flushall()
        one.check()  # nobody can know yet
        a.heartbeat.beat()
        for lease in (one, two):
            with pytest.raises(LeaseLost):
                lease.check()
        with make("b").hold("j1"):
            pass


def test_a_lease_past_its_time_here_is_not_renewed_there(make: Make, client: redis.Redis, clock: Clock) -> None:
    a = make()
    with a.hold("j"):
        client.pexpire(key("j"), 5_000)
        clock.now += TTL_S
        a.heartbeat.beat()
        assert client.pttl(key("j")) <= 5_000


def test_one_broken_key_does_not_cost_the_other_leases(make: Make, client: redis.Redis, clock: Clock) -> None:
    a = make()
    with a.hold("bad") as bad, a.hold("good") as good:
        client.delete(key("bad"))
        client.lpush(key("bad"), "not a lease")
        clock.now += TTL_S - 1
        assert not a.heartbeat.beat()
        bad.check()
        clock.now += 1
        good.check()
        with pytest.raises(LeaseLost):
            bad.check()


def test_the_mirror_is_renewed_for_what_is_bound_and_ours(make: Make, client: redis.Redis) -> None:
    asked: list[tuple[list[tuple[str, int]], float]] = []

    def mirror(claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        asked.append((list(claims), ttl_s))
        return {"overtaken"}

    a = make(mirror=mirror)
    with a.hold("free"), a.hold("bound") as bound, a.hold("overtaken") as overtaken, a.hold("gone") as gone:
        for fence, lease in enumerate((bound, overtaken, gone), 7):
            lease.bind(fence)
        client.delete(key("gone"))
        assert a.heartbeat.beat()
        assert asked == [([("bound", 7), ("overtaken", 8)], TTL_S)]
        bound.check()
        with pytest.raises(LeaseLost, match="fence"):
            overtaken.check()


# ── the server fails ──


@pytest.fixture
def own() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


def test_a_lease_survives_a_server_killed_and_restarted_within_the_ttl(make: Make, own: Valkey, clock: Clock) -> None:
    with own.client() as client:
        a = make(redis=client)
        with a.hold("j") as lease:
            own.kill()
            clock.now += 50
            assert not a.heartbeat.beat()
            lease.check()
            own.start()
            assert a.heartbeat.beat()
            clock.now += TTL_S - 1
            lease.check()
            with pytest.raises(LeaseBusy), make("b", redis=client).hold("j"):
                pass
        assert make("b", redis=client).live(["j"]) == set()


def test_a_silent_server_costs_the_lease_only_after_its_time(make: Make, own: Valkey, clock: Clock) -> None:
    with own.client(timeout_s=0.2) as client:
        a = make(redis=client)
        with a.hold("j") as lease:
            own.pause()
            clock.now += TTL_S - 0.1
            assert not a.heartbeat.beat()
            lease.check()
            clock.now += 0.1
            with pytest.raises(LeaseLost):
                lease.check()
            own.go_on()
            wait_until(lambda: make("b", redis=client).live(["j"]), "the server to be back")
            a.heartbeat.beat()  # also when it is still ours there: what is lost stays lost
            with pytest.raises(LeaseLost):
                lease.check()


def test_without_a_server_nothing_is_given_and_release_is_silent(make: Make, own: Valkey, clock: Clock) -> None:
    with own.client() as client:
        a = make(redis=client)
        with a.hold("j"):
            own.kill()
        for ask in (lambda: a.hold("k").__enter__(), lambda: a.live(["k"])):
            with pytest.raises(LeaseUnavailable):
                ask()
        dead = RedisLeases(client, "a", clock=clock, is_dead=lambda _: True)
        with pytest.raises(LeaseUnavailable):
            dead.release_dead("k", "t")


# ── dead owners ──


def test_only_a_dead_owner_s_own_lease_is_released_in_its_name(make: Make, client: redis.Redis, clock: Clock) -> None:
    judge = RedisLeases(client, "judge", TTL_S, 40.0, None, clock, is_dead=lambda token: "dead" in token)
    with make("dead").hold("j") as theirs, make("alive").hold("k") as other:
        assert judge.owner_is_dead(theirs.token)
        assert not judge.owner_is_dead(other.token)
        assert not judge.release_dead("k", other.token)
        assert not judge.release_dead("k", theirs.token)
        assert judge.live(["j", "k"]) == {"j", "k"}
        assert judge.release_dead("j", theirs.token)
        assert not judge.release_dead("j", theirs.token)
        assert judge.live(["j", "k"]) == {"k"}


def test_a_job_whose_holder_is_certainly_dead_is_not_busy(make: Make, client: redis.Redis, clock: Clock) -> None:
    heir = RedisLeases(client, "heir", TTL_S, 40.0, None, clock, is_dead=lambda token: "dead" in token)
    with make("dead").hold("j") as theirs, make("alive").hold("k"):
        with heir.hold("j") as lease:
            lease.check()
            assert client.get(key("j")) == lease.token.encode()
        assert theirs.token != lease.token
        with pytest.raises(LeaseBusy), heir.hold("k"):
            pass
    heir.close()


def test_a_release_that_failed_is_made_up_for_by_the_next_acquisition(make: Make, own: Valkey) -> None:
    with own.client() as client:
        a, b = make("a", redis=client), make("b", redis=client)
        with a.hold("j"):
            own.kill()
        own.start()
        assert b.live(["j"]) == {"j"}
        with a.hold("k"):
            assert b.live(["j", "k"]) == {"k"}
        with b.hold("j"):
            pass


def test_our_own_process_is_not_dead(client: redis.Redis) -> None:
    leases = RedisLeases(client)
    port: Leases = leases  # mypy: the adapter has the port's shape
    assert port.live(["j"]) == set()
    with leases.hold("j") as lease:
        assert not leases.owner_is_dead(lease.token)
        assert not leases.release_dead("j", lease.token)
        assert leases.live(["j"]) == {"j"}
    leases.close()


# ── settings ──


@pytest.mark.parametrize(
    ("ttl_s", "renew_s"),
    [
        (120.0, 60.0),  # one missed renewal would end the lease
        (120.0, 600.0),
        (120.0, 0.0),
        (120.0, -1.0),
        (0.0, 0.0),
        (float("nan"), 1.0),
        (120.0, float("nan")),
        (float("inf"), 1.0),
    ],
)
def test_impossible_times_are_refused(client: redis.Redis, ttl_s: float, renew_s: float) -> None:
    with pytest.raises(Misconfigured):
        RedisLeases(client, "a", ttl_s, renew_s)


def test_the_default_times_are_those_of_the_spec(client: redis.Redis) -> None:
    leases = RedisLeases(client, "a")
    with leases.hold("j"):
        assert 110_000 < client.pttl(key("j")) <= 120_000
    leases.close()


# ── one heartbeat per process ──


def test_the_heartbeat_renews_by_itself(client: redis.Redis) -> None:
    leases = RedisLeases(client, "a", ttl_s=30.0, renew_s=0.02)
    with leases.hold("j") as lease:
        client.pexpire(key("j"), 10_000)
        wait_until(lambda: client.pttl(key("j")) > 15_000, "a renewal")
        lease.check()
    leases.close()
