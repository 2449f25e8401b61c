"""Several processes and one host: a real Redis, and a real origin whose log is judged. HUB-3, HUB-4."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import redis

from dlpipe.core.errors import Postponed
from dlpipe.net import urls
from dlpipe.net.client import Hub
from dlpipe.net.gate import ARRIVES_MS, MEANT
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.line import RedisLine
from dlpipe.net.policy import NetPolicy
from tests.origin import Asked, Origin, Say, Then, answer
from tests.servers import Valkey, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines(),
]

REPOSITORY = Path(__file__).resolve().parents[2]
PROCESSES = 4


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def line(valkey: Valkey) -> Iterator[redis.Redis]:
    with valkey.client() as client:
        yield client


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


class Log:
    """When each request was with the server, and how many were at once."""

    def __init__(self, say: Callable[[Asked], Say] | None = None) -> None:
        self.times: list[float] = []
        self.most = 0
        self._say = say or (lambda _: Say(answer(200, b"abc")))
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Say:
        with self._lock:
            self.times.append(time.monotonic())
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self._say(asked)
        finally:
            with self._lock:
                self._now -= 1

    def fullest_second(self, since: float = 0.0) -> int:
        times = [at for at in self.times if at >= since]
        return max(sum(at <= other < at + 1.0 for other in times) for at in times)


class Worker:
    def __init__(self, valkey: Valkey, url: str, **told: Any) -> None:
        self.said: list[dict[str, Any]] = []
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.asking"],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"redis": valkey.url, "url": url, "method": "GET", **told}) + "\n")
        self._child.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def codes(self) -> Counter[str]:
        return Counter(one["code"] for one in list(self.said))

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(20)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if self._child.poll() is None:
            self._child.stdin.close()
            try:
                self._child.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(20)
        self._child.stdout.close()
        if not self._child.stdin.closed:
            self._child.stdin.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for text in self._child.stdout:
            self.said.append(json.loads(text))


class Workers(list[Worker]):
    """Four of them, until the block ends."""

    def __init__(self, valkey: Valkey, url: str, **told: Any) -> None:
        super().__init__(Worker(valkey, url, **told) for _ in range(PROCESSES))

    def codes(self) -> Counter[str]:
        return sum((one.codes() for one in self), Counter())

    def late(self) -> int:
        """What may have reached the server later than counted, as a stalled machine makes it: one more in a second."""
        return sum(one["under_way_s"] > ARRIVES_MS / 1000 for worker in self for one in list(worker.said))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> None:
        for one in self:
            one.__exit__(*error)


def patient(**more: float) -> dict[str, float]:
    """A worker that waits for its turn however long that takes."""
    return {"max_wait_s": 60.0, **more}


# ── requests a second ──


@pytest.mark.parametrize(("method", "budget"), [("GET", 10), ("HEAD", 25)])
def test_four_processes_share_a_budget_and_no_second_sees_more(
    valkey: Valkey, origin: Origin, method: str, budget: int
) -> None:
    log = Log()
    url = origin.on("/f", log)
    with Workers(valkey, url, method=method, bounds={"rate_per_s": budget}, threads=3, policy=patient()) as workers:
        wait_until(lambda: all(one.said for one in workers), "all of them at work")
        began, before = time.monotonic(), len(log.times)
        wait_until(lambda: len(log.times) >= before + 6 * budget, "six seconds' worth of requests", 40)
        took_s = time.monotonic() - began
        assert workers.codes().keys() == {"200"}
    print(
        f"fullest second: {log.fullest_second()} of {budget}, {workers.late()} late; {6 * budget / took_s:.1f} a second"
    )
    assert log.fullest_second() <= budget + workers.late()
    assert took_s < 15, "the budget is a limit, not a brake"
    assert min(len(one.said) for one in workers) > 0


def test_a_slow_origin_is_no_way_around_it(valkey: Valkey, origin: Origin) -> None:
    """What is let through in different seconds may arrive in the same one."""
    held, ending = [0.0, 0.35, 0.7, 0.1], threading.Event()
    log = Log()

    def dawdle(asked: Asked) -> Say:
        ending.wait(held[asked.connection % 4])
        return log(asked)

    url = origin.on("/f", dawdle)
    with Workers(valkey, url, bounds={"rate_per_s": 8}, threads=4, policy=patient()) as workers:
        wait_until(lambda: len(log.times) >= 40, "enough requests", 40)
    ending.set()
    print(f"fullest second: {log.fullest_second()} of 8, {workers.late()} late")
    assert log.fullest_second() <= 8 + workers.late()


def test_those_who_would_wait_long_are_handed_back_at_different_times(valkey: Valkey, origin: Origin) -> None:
    log = Log()
    url = origin.on("/f", log)
    told: dict[str, Any] = {"bounds": {"rate_per_s": 0.05}, "policy": {"max_wait_s": 0.5}, "pause_s": 0.1}
    with Workers(valkey, url, **told) as workers:
        wait_until(lambda: workers.codes()["host_busy"] >= 12, "refusals")
    later = sorted(one["after_s"] for worker in workers for one in worker.said if one["code"] == "host_busy")
    assert (len(log.times), workers.codes()["200"]) == (1, 1)
    assert later[0] > 15
    assert later[-1] - later[0] > 150, "twenty seconds apart"
    assert max(one["took_s"] for worker in workers for one in worker.said) < 5


# ── when Redis forgets or goes away ──


def test_redis_emptied_in_the_middle_costs_one_window_at_most(
    valkey: Valkey, origin: Origin, line: redis.Redis
) -> None:
    log = Log()
    url = origin.on("/f", log)
    with Workers(valkey, url, bounds={"rate_per_s": 10, "slots": 3}, threads=3, policy=patient()) as workers:
        wait_until(lambda: len(log.times) >= 25, "requests before")
        line.flushall()
        emptied, before = time.monotonic(), len(log.times)
        wait_until(lambda: len(log.times) >= before + 30, "requests after", 30)
        assert workers.codes().keys() == {"200"}
    print(f"fullest second: {log.fullest_second()}, after it: {log.fullest_second(emptied + 0.05)}")
    assert log.fullest_second() <= 20 + workers.late()
    assert log.fullest_second(emptied + 0.05) <= 10 + workers.late()


def test_without_redis_everybody_goes_on_and_afterwards_all_together_again(valkey: Valkey, origin: Origin) -> None:
    log = Log()
    url = origin.on("/f", log)
    told: dict[str, Any] = {"bounds": {"rate_per_s": 5}, "policy": patient(), "away_s": 0.3}
    with Workers(valkey, url, **told) as workers:
        wait_until(lambda: len(log.times) >= 10, "requests before")
        valkey.kill()
        before = [len(one.said) for one in workers]
        wait_until(
            lambda: all(len(one.said) >= n + 6 for one, n in zip(workers, before, strict=True)), "each by itself", 30
        )
        assert log.fullest_second() <= 5 * (PROCESSES + 1) + workers.late()
        valkey.start()
        back = time.monotonic()
        wait_until(lambda: log.times[-1] > back + 3.0, "three seconds with Redis")
        assert workers.codes().keys() == {"200"}
    assert log.fullest_second(back + 1.5) <= 5 + workers.late()


# ── answers at once ──


def test_four_processes_share_the_slots(valkey: Valkey, origin: Origin) -> None:
    ending = threading.Event()
    log = Log(lambda _: Say(answer(200, b"abc")) if not ending.wait(0.02) else Say(then=Then.CLOSE))
    url = origin.on("/f", log)
    with Workers(valkey, url, bounds={"slots": 2}, threads=3, policy=patient()) as workers:
        wait_until(lambda: len(log.times) >= 100, "requests", 60)
        assert workers.codes().keys() == {"200"}
    ending.set()
    assert log.most == 2


def test_the_slots_of_a_killed_process_come_back(valkey: Valkey, origin: Origin, line: redis.Redis) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab"
    held = origin.on("/held", Say(head, Then.HANG))
    free = origin.on("/free", answer(200, b"abc"))
    told: dict[str, Any] = {"bounds": {"slots": 2}, "policy": {"max_wait_s": 0.2, "slot_ttl_s": 1.5}}
    key = f"dlpipe:slots:{{{origin.url}}}"

    def until() -> Sequence[float]:
        found: Any = line.zrange(key, 0, -1, withscores=True)
        return sorted(score for _, score in found)

    with Worker(valkey, held, threads=2, **told) as holder, Worker(valkey, free, pause_s=0.05, **told) as other:
        wait_until(lambda: len(until()) == 2, "both slots taken")
        first = until()
        wait_until(lambda: min(until(), default=0) > first[-1] + 1500, "renewed past their first end")
        before = other.codes()["200"]
        refused = other.codes()["host_busy"]
        wait_until(lambda: other.codes()["host_busy"] > refused, "a refusal while they are held")
        assert other.codes()["200"] == before
        holder.kill()
        died = time.monotonic()
        wait_until(lambda: other.codes()["200"] > before, "a slot for the other")
        assert time.monotonic() - died < 1.5 + 1.0


# ── busy answers ──


def test_a_busy_url_is_left_alone_by_all_workers_and_its_origin_goes_on(valkey: Valkey, origin: Origin) -> None:
    busy = origin.on("/busy", answer(429, b"", "Retry-After: 60"))
    log = Log()
    well = origin.on("/well", log)
    told: dict[str, Any] = {"bounds": {"rate_per_s": 50}, "pause_s": 0.02}
    with Workers(valkey, well, policy=patient(), **told) as others, Worker(valkey, busy, **told) as first:
        wait_until(lambda: first.said, "the busy answer")
        with Workers(valkey, busy, **told) as late:
            wait_until(lambda: all(len(one.said) >= 5 for one in late), "those who come later")
            before = len(log.times)
            wait_until(lambda: len(log.times) >= before + 20, "the others of that origin")
            assert (first.codes() + late.codes()).keys() == {"retry_after"}
            assert max(one["after_s"] for worker in late for one in worker.said) <= 61
        assert others.codes().keys() == {"200"}
    assert len(origin.of("/busy")) == 1


def test_a_cooling_origin_holds_up_its_own_jobs_and_not_the_same_host_at_another_port(
    valkey: Valkey, origin: Origin
) -> None:
    sick = [origin.on(f"/sick{n}", answer(503, b"", "Retry-After: 60")) for n in range(MEANT)]
    fresh = origin.on("/fresh", answer(200, b"abc"))
    log = Log()
    told: dict[str, Any] = {"bounds": {"rate_per_s": 10}, "pause_s": 0.02}
    with Origin() as beside:
        well = beside.on("/well", log)
        assert well.rpartition(":")[0] == fresh.rpartition(":")[0]
        with Workers(valkey, well, threads=2, policy=patient(), **told) as others:
            wait_until(lambda: all(one.said for one in others), "the other origin's workers")
            alone_s = _time_of(30, log)
            for url in sick:
                with Worker(valkey, url, **told) as one:
                    wait_until(lambda one=one: one.said, "a busy answer")  # type: ignore[misc]
            with Workers(valkey, fresh, **told) as late:
                wait_until(lambda: all(len(one.said) >= 5 for one in late), "those who come later")
                beside_s = _time_of(30, log)
                assert late.codes().keys() == {"host_cooling_down"}
            assert others.codes().keys() == {"200"}
    assert (len(origin.asked), origin.of("/fresh")) == (MEANT, [])
    print(f"30 requests to the other origin: {alone_s:.1f} s alone, {beside_s:.1f} s while one cools down")
    assert beside_s < 1.5 * alone_s + 1


def _time_of(requests: int, log: Log) -> float:
    began, before = time.monotonic(), len(log.times)
    wait_until(lambda: len(log.times) >= before + requests, "requests", 40)
    return time.monotonic() - began


# ── circuits ──


def test_of_four_processes_one_probe_at_a_time_finds_out(valkey: Valkey, origin: Origin, line: redis.Redis) -> None:
    state = {"answer": answer(500), "probing": False}
    released = threading.Event()

    def say(asked: Asked) -> Say:
        if state["probing"]:
            released.wait(30)
        return Say(state["answer"])  # type: ignore[arg-type]

    log = Log(say)
    url = origin.on("/f", log)
    policy = {"breaker_failures": 3, "breaker_open_s": 1.0}
    with Workers(valkey, url, threads=3, pause_s=0.01, policy=policy) as workers:
        wait_until(lambda: workers.codes()["host_circuit_open"] >= 50, "an open circuit")
        opened = len(log.times)
        assert opened < 3 + 3 * PROCESSES, "besides what was under way, three"
        state["probing"] = True
        log.most = 0
        wait_until(lambda: len(log.times) > opened, "a probe")
        refused = workers.codes()["host_circuit_open"]
        wait_until(lambda: workers.codes()["host_circuit_open"] > refused + 300, "refusals beside the probe")
        assert (len(log.times), log.most) == (opened + 1, 1)
        state.update(answer=answer(200, b"abc"))
        state["probing"] = False
        released.set()
        wait_until(lambda: all(one.codes()["200"] >= 3 for one in workers), "all pass again")
        assert line.keys("dlpipe:breaker:*") == []


def test_a_probe_that_fails_is_the_only_request_in_its_time(valkey: Valkey, origin: Origin) -> None:
    log = Log(lambda _: Say(answer(500)))
    url = origin.on("/f", log)
    policy = {"breaker_failures": 2, "breaker_open_s": 1.0}
    with Workers(valkey, url, threads=2, pause_s=0.01, policy=policy) as workers:
        wait_until(lambda: workers.codes()["host_circuit_open"] > 0, "an open circuit")
        opened = len(log.times)
        wait_until(lambda: len(log.times) >= opened + 3, "three probes")
    gaps = [b - a for a, b in zip(log.times[opened - 1 :], log.times[opened:], strict=False)]
    assert min(gaps) >= 0.95


def test_the_prober_killed_on_its_way_is_replaced(valkey: Valkey, origin: Origin, line: redis.Redis) -> None:
    url = origin.on("/f", answer(500), answer(500), Say(then=Then.HANG), answer(200, b"abc"))
    told: dict[str, Any] = {"pause_s": 0.05, "policy": {"breaker_failures": 2, "breaker_open_s": 0.3}}
    with Worker(valkey, url, **told) as prober:
        wait_until(lambda: len(origin.asked) == 3, "the probe under way")
        with Worker(valkey, url, **told) as other:
            wait_until(lambda: other.codes()["host_circuit_open"] >= 3, "refusals beside the probe")
            prober.kill()
            key = f"dlpipe:breaker:{{{origin.url}}}"
            assert line.hget(key, "probe_until") is not None
            line.hset(key, "probe_until", "1")  # as if the time had passed that a probe may take
            wait_until(lambda: other.codes()["200"] >= 3, "another probe")
            assert other.codes().keys() == {"host_circuit_open", "200"}


# ── one process ──


def test_the_cost_of_the_layers(valkey: Valkey, origin: Origin, line: redis.Redis) -> None:
    """A figure to look at, and a bound that only something badly wrong passes."""
    url = urls.address(origin.on("/f", answer(200, b"abc")))
    took: dict[str, float] = {}
    policy = NetPolicy(allow_private=True, retries=0)
    hubs = {
        "bare": Hub(NetPolicy(allow_private=True, retries=0, breaker_failures=0)),
        "shared": Hub(policy, limits=HostLimits(Bounds(1e6, 1000)), line=RedisLine(line)),
    }
    for name, hub in hubs.items():
        for count in (20, 300):
            began = time.monotonic()
            for _ in range(count):
                reply = hub.send("GET", url, tenant="default")
                for _ in reply.chunks():
                    pass
                reply.close()
            took[name] = (time.monotonic() - began) / count
        hub.close()
    print({name: f"{1e6 * seconds:.0f} µs a request" for name, seconds in took.items()})
    assert took["shared"] - took["bare"] < 0.02


def test_a_longer_wait_costs_the_job_nothing_but_time(valkey: Valkey, origin: Origin, line: redis.Redis) -> None:
    url = urls.address(origin.on("/f", answer(200, b"abc")))
    hub = Hub(
        NetPolicy(allow_private=True, max_wait_s=0.0), limits=HostLimits(Bounds(rate_per_s=1)), line=RedisLine(line)
    )
    hub.send("GET", url, tenant="default").close()
    with pytest.raises(Postponed) as caught:
        hub.send("GET", url, tenant="default")
    assert caught.value.code == "host_busy"
    hub.close()
