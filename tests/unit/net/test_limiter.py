"""The layer that waits for our turn at a host, or hands the job back. HUB-3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured, Postponed, Retryable
from dlpipe.net import failures, limits
from dlpipe.net.gate import Gate, LocalGate
from dlpipe.net.layer import Ask
from dlpipe.net.limiter import Limiter
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.line import Away
from dlpipe.net.policy import NetPolicy
from dlpipe.net.slots import Renewals
from tests.unit.net.answers import Answer, Inner

POLICY = NetPolicy(max_wait_s=3.0, slot_ttl_s=30.0, max_retry_after_s=3600.0)
FREE = Bounds()
HOST = "a.example"
NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


class Rig:
    """A limiter whose sleeps let the time pass that was slept."""

    def __init__(
        self,
        bounds: Bounds = FREE,
        shared: Gate | None = None,
        policy: NetPolicy = POLICY,
    ) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []
        self.local = LocalGate(lambda: self.now_s)
        self.limiter = Limiter(
            policy, HostLimits(bounds), shared, self.local,
            sleep=self.sleep, now_epoch_s=lambda: NOW, chance=lambda: 0.5,
        )  # fmt: skip

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def ask(self, inner: Inner, host: str = HOST, method: str = "GET") -> Answer:
        return self.limiter.call(Ask(method, host), inner)


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def one(*args: object, **more: object) -> Rig:
        made.append(Rig(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for rig in made:
        rig.limiter.close()


Make = Callable[..., Rig]


def test_within_the_budget_nobody_waits(make: Make) -> None:
    rig, inner = make(Bounds(rate_per_s=3)), Inner()
    for _ in range(3):
        rig.ask(inner).close()
    assert (rig.slept, len(inner.asked)) == ([], 3)


def test_a_short_wait_is_slept(make: Make) -> None:
    rig, inner = make(Bounds(rate_per_s=1)), Inner()
    rig.ask(inner).close()
    rig.ask(inner).close()
    assert len(inner.asked) == 2
    assert sum(rig.slept) == pytest.approx(1.0, abs=0.11)
    assert max(rig.slept) <= 0.1  # looked at again and again: room may come early


def test_a_longer_wait_hands_the_job_back_at_once(make: Make) -> None:
    rig, inner = make(Bounds(rate_per_s=0.1)), Inner()
    rig.ask(inner).close()
    with pytest.raises(Postponed) as caught:
        rig.ask(inner)
    assert caught.value.code == "host_busy"
    assert caught.value.hint
    assert caught.value.after_s == pytest.approx(10.5, abs=0.1)
    assert (rig.slept, len(inner.asked)) == ([], 1)


def test_those_who_are_sent_away_are_told_another_time_each(make: Make) -> None:
    rig, inner = make(Bounds(rate_per_s=0.1)), Inner()
    rig.ask(inner).close()
    told = []
    for _ in range(4):
        with pytest.raises(Postponed) as caught:
            rig.ask(inner)
        told.append(int(caught.value.after_s))
    assert told == [10, 20, 30, 40]


def test_hosts_do_not_wait_for_each_other(make: Make) -> None:
    rig, inner = make(Bounds(rate_per_s=0.1, slots=1)), Inner()
    held = [rig.ask(inner, f"h{n}.example") for n in range(20)]
    assert (rig.slept, len(held)) == ([], 20)


@pytest.mark.parametrize("spelling", ["A.EXAMPLE", "a.example.", "A.Example.."])
def test_another_spelling_of_a_host_is_the_same_host(make: Make, spelling: str) -> None:
    rig, inner = make(Bounds(rate_per_s=0.1)), Inner()
    rig.ask(inner).close()
    with pytest.raises(Postponed):
        rig.ask(inner, spelling)


def test_a_slot_is_held_until_the_body_is_over(make: Make) -> None:
    rig, inner = make(Bounds(slots=1)), Inner()
    body = rig.ask(inner)
    with pytest.raises(Postponed) as caught:
        rig.ask(inner)
    assert caught.value.code == "host_busy"
    assert sum(rig.slept) == pytest.approx(POLICY.max_wait_s, abs=0.11)
    body.close()
    rig.ask(inner).close()
    assert len(inner.asked) == 2


@pytest.mark.parametrize("error", [failures.connect_failed(HOST), KeyboardInterrupt()])
def test_a_request_that_fails_gives_its_slot_back(make: Make, error: BaseException) -> None:
    rig = make(Bounds(slots=1))
    for _ in range(3):
        with pytest.raises(type(error)):
            rig.ask(Inner([error]))
    assert rig.slept == []


def test_time_on_the_way_counts_for_the_window(make: Make) -> None:
    rig = make(Bounds(rate_per_s=1))
    inner = Inner(meanwhile=lambda: rig.sleep(0.6))
    rig.ask(inner).close()
    rig.slept.clear()
    rig.ask(inner).close()
    assert sum(rig.slept) - 0.6 == pytest.approx(1.0, abs=0.11)


# ── cool-downs ──


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("asked", "after_s"), [("60", 60.5), ("Sun, 06 Nov 1994 08:50:37 GMT", 60.5), ("99999", 3600.5)]
)
def test_what_a_host_asks_for_holds_for_that_host(make: Make, status: int, asked: str, after_s: float) -> None:
    rig = make()
    rig.ask(Inner([(status, {"Retry-After": asked})])).close()
    inner = Inner()
    with pytest.raises(Postponed) as caught:
        rig.ask(inner)
    assert (caught.value.code, caught.value.after_s) == ("host_cooling_down", after_s)
    assert (inner.asked, rig.slept) == ([], [])
    rig.ask(inner, "b.example").close()
    rig.now_s += 3601
    rig.ask(inner).close()
    assert len(inner.asked) == 2


def test_a_short_cool_down_is_slept(make: Make) -> None:
    rig, inner = make(), Inner([(429, {"Retry-After": "2"}), 200])
    rig.ask(inner).close()
    rig.ask(inner).close()
    assert sum(rig.slept) == pytest.approx(2.0, abs=0.11)


@pytest.mark.parametrize(("status", "value"), [(429, "soon"), (429, "-5"), (429, "0"), (200, "60"), (500, "60")])
def test_what_is_no_wish_to_be_left_alone(make: Make, status: int, value: str) -> None:
    rig, inner = make(), Inner([(status, {"Retry-After": value})])
    for _ in range(2):
        rig.ask(inner).close()
    assert (len(inner.asked), rig.slept) == (2, [])


# ── Redis away ──


class Broken:
    """A gate that is there as long as the test says so."""

    def __init__(self) -> None:
        self.here, self.inner = True, LocalGate(lambda: 5.0)

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            if not self.here:
                raise Away
            return getattr(self.inner, name)(*args)

        return call


def test_while_redis_is_away_each_process_keeps_the_limits_by_itself(make: Make) -> None:
    gate = Broken()
    gate.here = False
    rig, inner = make(Bounds(rate_per_s=0.1, slots=1), gate), Inner()
    body = rig.ask(inner)
    with pytest.raises(Postponed):
        rig.ask(inner)
    body.close()
    rig.ask(Inner([(429, {"Retry-After": "60"})]), "b.example").close()
    with pytest.raises(Postponed):
        rig.ask(inner, "b.example")


def test_redis_going_away_in_the_middle_fails_nothing(make: Make) -> None:
    gate = Broken()
    rig, inner = make(Bounds(rate_per_s=5, slots=2), gate), Inner()
    held = rig.ask(inner)
    gate.here = False
    held.close()
    rig.ask(inner).close()
    gate.here = True
    rig.ask(inner).close()
    assert (len(inner.asked), rig.slept) == (3, [])


def test_a_cool_down_outlasts_redis(make: Make) -> None:
    gate = Broken()
    rig = make(Bounds(), gate)
    rig.ask(Inner([(503, {"Retry-After": "60"})])).close()
    gate.here = False
    with pytest.raises(Postponed):
        rig.ask(Inner())


# ── renewing ──


class Seen:
    def __init__(self) -> None:
        self.renewals: list[list[tuple[str, str]]] = []
        self.came = threading.Semaphore(0)

    def __call__(self, held: Sequence[tuple[str, str]]) -> None:
        self.renewals.append(list(held))
        self.came.release()

    def wait(self) -> None:
        assert self.came.acquire(timeout=20)


def test_what_is_held_is_renewed_until_it_is_given_back() -> None:
    seen = Seen()
    renewals = Renewals(0.01, seen)
    renewals.add("a", "1")
    renewals.add("b", "2")
    for _ in range(3):
        seen.wait()
    assert seen.renewals[-1] == [("a", "1"), ("b", "2")]
    renewals.remove("a", "1")
    before = len(seen.renewals)
    while len(seen.renewals) < before + 2:
        seen.wait()
    assert seen.renewals[before + 1 :][0] == [("b", "2")]
    thread = renewals._thread
    assert thread is not None
    renewals.remove("b", "2")
    thread.join(20)
    assert not thread.is_alive()
    renewals.add("c", "3")
    while seen.renewals[-1] != [("c", "3")]:
        seen.wait()
    renewals.close()


def test_a_renewal_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()

    def failing(held: Sequence[tuple[str, str]]) -> None:
        seen(held)
        raise ValueError

    renewals = Renewals(0.01, failing)
    renewals.add("a", "1")
    for _ in range(3):
        seen.wait()
    renewals.close()
    assert "slots were not renewed" in caplog.text


def test_the_limiter_renews_what_it_holds(make: Make) -> None:
    class Watched(LocalGate):
        seen = Seen()

        def renew(self, held: Sequence[tuple[str, str]], ttl_ms: int) -> None:
            self.seen(held)

    policy = NetPolicy(slot_ttl_s=0.03)
    gate = Watched()
    rig = make(Bounds(slots=1), gate, policy)
    body = rig.ask(Inner())
    gate.seen.wait()
    body.close()
    ((host, _),) = gate.seen.renewals[0]
    assert host == HOST


# ── what the file says ──


def write(folder: Path, text: str) -> Path:
    file = folder / "limits.toml"
    file.write_text(text)
    return file


def test_the_nearest_entry_counts(tmp_path: Path) -> None:
    file = write(tmp_path, """
[hosts."Slow.example.org"]
rate_per_s = 0.5
slots = 1
[hosts."*.example.org"]
rate_per_s = 5
[hosts."*.deep.example.org"]
slots = 0
""")  # fmt: skip
    found = limits.read(file, Bounds(100.0, 32))
    assert found.of("slow.example.org") == Bounds(0.5, 1)
    assert found.of("SLOW.example.org.") == Bounds(0.5, 1)
    assert found.of("other.example.org") == Bounds(5.0, 32)
    assert found.of("very.deep.example.org") == Bounds(100.0, 0)
    assert found.of("deep.example.org") == Bounds(5.0, 32)
    for other in ("example.org", "notexample.org", "1.2.3.4", "::1", "org"):
        assert found.of(other) == Bounds(100.0, 32)


@pytest.mark.parametrize(
    "text",
    ["rate_per_s = 1", "[hosts.a]\nrate = 1", "[hosts.a]\nrate_per_s = -1", "[hosts.a]\nrate_per_s = 'fast'",
     "[hosts.a]\nrate_per_s = inf", "[hosts.a]\nrate_per_s = 1e-9", "[hosts.a]\nrate_per_s = true",
     "[hosts.a]\nslots = 1.5", "[hosts.a]\nslots = -1", "[hosts.a]\nslots = 99999", "[hosts.'a*']\nslots = 1",
     "[hosts.'*']\nslots = 1", "[hosts.'*.']\nslots = 1", "hosts = 3", "[hosts]\na = 3", "not toml", "[more]\nx = 1"],
)  # fmt: skip
def test_a_file_that_says_something_else_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        limits.read(write(tmp_path, text), Bounds())
    assert caught.value.code == "limits_invalid"
    assert "limits.toml" in caught.value.message


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured):
        limits.read(tmp_path / "none.toml", Bounds())
    assert limits.read(None, Bounds(1.0, 2)).of("a") == Bounds(1.0, 2)


@pytest.mark.parametrize(
    ("rate", "budget", "window_ms"),
    [(0.0, 0, 1000), (1.0, 1, 1000), (2.9, 2, 1000), (100.0, 100, 1000), (0.5, 1, 2000), (0.3, 1, 3334)],
)
def test_a_rate_as_a_budget_and_a_window(rate: float, budget: int, window_ms: int) -> None:
    bounds = Bounds(rate_per_s=rate)
    assert (bounds.budget, bounds.window_ms) == (budget, window_ms)


def test_a_failure_costs_what_it_costs_without_the_limiter(make: Make) -> None:
    with pytest.raises(Retryable) as caught:
        make(Bounds(1.0, 1)).ask(Inner([failures.read_timeout(HOST)]))
    assert caught.value.code == "read_timeout"
