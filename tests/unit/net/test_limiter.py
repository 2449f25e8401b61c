"""The layer that waits for our turn at a host, or hands the job back. HUB-3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dlpipe.core.errors import Misconfigured, Postponed, Retryable
from dlpipe.core.urls import origin
from dlpipe.net import failures, limits
from dlpipe.net.gate import KEPT_MS, Gate
from dlpipe.net.layer import Ask
from dlpipe.net.limiter import Limiter
from dlpipe.net.limits import Bounds, HostLimits
from dlpipe.net.line import Away
from dlpipe.net.local_gate import LocalGate
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

    def ask(self, inner: Inner, host: str = HOST, method: str = "GET", url: str = "u") -> Answer:
        return self.limiter.call(Ask(method, host, origin("https", host, 443), url), inner)

    def refused(self, inner: Inner, host: str = HOST, method: str = "GET", url: str = "u") -> tuple[str, float]:
        """The code and the wait with which the job is handed back."""
        with pytest.raises(Postponed) as caught:
            self.ask(inner, host, method, url)
        assert caught.value.hint
        return caught.value.code, caught.value.after_s


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


# ── busy answers ──


def busy(asked: str = "", status: int = 429) -> Inner:
    return Inner([(status, {"Retry-After": asked} if asked else {})])


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("asked", "after_s"), [("60", 60.5), ("Sun, 06 Nov 1994 08:50:37 GMT", 60.5), ("99999", 3600.5)]
)
def test_a_url_that_is_busy_waits_and_the_others_of_its_origin_go_on(
    make: Make, status: int, asked: str, after_s: float
) -> None:
    rig, inner = make(), Inner()
    assert rig.refused(busy(asked, status)) == ("retry_after", after_s)
    assert rig.refused(inner) == ("retry_after", after_s)
    assert (inner.asked, rig.slept) == ([], [])
    rig.ask(inner, url="other").close()
    rig.ask(inner, "b.example").close()
    rig.now_s += after_s
    rig.ask(inner).close()
    assert len(inner.asked) == 3


def test_a_url_that_stays_busy_waits_longer_each_time_up_to_a_bound_until_it_is_answered(make: Make) -> None:
    rig = make()
    told = []
    for _ in range(7):
        told.append(rig.refused(busy("120"))[1])
        rig.now_s += told[-1]
    assert told == [120.5, 240.5, 480.5, 960.5, 1920.5, 3600.5, 3600.5]
    rig.ask(Inner()).close()
    assert rig.refused(busy("120"))[1] == 120.5


def test_a_wait_that_a_server_makes_longer_itself_is_not_made_longer_by_us(make: Make) -> None:
    rig = make()
    assert rig.refused(busy("100"))[1] == 100.5
    rig.now_s += 101
    assert rig.refused(busy("500"))[1] == 500.5


def test_a_wait_that_is_over_for_long_is_forgotten(make: Make) -> None:
    rig = make()
    rig.refused(busy("120"))
    rig.now_s += 2 * 120 + KEPT_MS / 1000
    assert rig.refused(busy("120"))[1] == 120.5


@pytest.mark.parametrize("value", ["", "0", "soon", "-5"])
def test_without_retry_after_a_url_waits_as_retries_do_and_the_answer_is_handed_on(make: Make, value: str) -> None:
    rig, inner = make(), busy(value)
    for _ in range(3):
        rig.ask(inner).close()
    assert sum(rig.slept) == pytest.approx(0.5 + 1.0, abs=0.11)
    rig.slept.clear()
    rig.ask(Inner(), url="other").close()
    assert rig.slept == []


def test_the_answers_of_head_and_of_get_hold_for_themselves(make: Make) -> None:
    rig, inner = make(), Inner()
    assert rig.refused(busy("120"), method="GET")[1] == 120.5
    rig.ask(inner, method="HEAD").close()  # which does not end what GET was told
    assert rig.refused(inner, method="GET")[0] == "retry_after"


@pytest.mark.parametrize("asked", ["", "5"])
def test_a_head_that_a_server_cannot_do_now_keeps_no_get_waiting(make: Make, asked: str) -> None:  # row 40
    rig, inner = make(), Inner()
    for n in range(10):
        rig.ask(busy(asked, 503), method="HEAD", url=f"u{n}").close()
    rig.ask(inner, url="u0").close()
    rig.ask(inner, method="HEAD", url="u0").close()
    assert rig.slept == []


def test_several_urls_that_are_busy_one_after_the_other_mean_their_origin(make: Make) -> None:
    rig, inner = make(), Inner()
    assert [rig.refused(busy("60"), url=f"u{n}")[0] for n in range(3)] == [
        "retry_after", "retry_after", "host_cooling_down",
    ]  # fmt: skip
    assert rig.refused(inner, url="fresh")[0] == "host_cooling_down"
    rig.ask(inner, "b.example").close()
    assert rig.limiter.call(Ask("GET", HOST, origin("https", HOST, 8443), "u"), inner).status_code == 200
    rig.now_s += 61
    rig.ask(inner, url="fresh").close()


def test_an_origin_that_is_answered_in_between_is_not_meant(make: Make) -> None:
    rig = make()
    for n in range(10):
        assert rig.refused(busy("60"), url=f"u{n}")[0] == "retry_after"
        rig.ask(Inner(), url=f"ok{n}").close()


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_server_that_fails_has_not_answered(make: Make, status: int) -> None:
    rig, codes = make(), []
    for n in range(3):
        rig.ask(Inner([status]), url=f"e{n}").close()
        codes.append(rig.refused(busy("60"), url=f"u{n}")[0])
    assert codes[-1] == "host_cooling_down"


def test_a_cool_down_that_comes_back_is_longer_each_time(make: Make) -> None:
    rig, told = make(), []
    for n in range(9):
        code, after_s = rig.refused(busy("30"), url=f"u{n}")
        if code == "host_cooling_down":
            told.append(round(after_s))
            rig.now_s += after_s + 1
    assert told == [30, 60, 120], "each time several say so"


def test_those_who_wait_for_a_cool_down_are_told_times_one_request_apart(make: Make) -> None:
    rig = make(Bounds(rate_per_s=2))
    for n in range(3):
        rig.refused(busy("60"), url=f"u{n}")
        rig.now_s += 2
    told = [rig.refused(Inner(), url=f"x{n}")[1] for n in range(4)]
    assert [round(b - a, 3) for a, b in pairwise(told)] == [0.5, 0.5, 0.5]


def test_a_short_wait_of_a_url_is_slept(make: Make) -> None:
    rig, inner = make(), Inner([(429, {"Retry-After": "2"}), 200])
    rig.ask(inner).close()
    rig.ask(inner).close()
    assert sum(rig.slept) == pytest.approx(2.0, abs=0.11)


@pytest.mark.parametrize("status", [200, 404, 500])
def test_only_429_and_503_say_that_a_server_is_busy(make: Make, status: int) -> None:
    rig, inner = make(), busy("60", status)
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
    rig.refused(busy("60"), "b.example")
    assert rig.refused(inner, "b.example")[0] == "retry_after"


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


def test_a_wait_outlasts_redis(make: Make) -> None:
    gate = Broken()
    rig = make(Bounds(), gate)
    rig.refused(busy("60", 503))
    gate.here = False
    assert rig.refused(Inner())[0] == "retry_after"


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
    assert host == f"https://{HOST}"


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
