"""A URL that is always busy, and an origin that is: what waits for them on the whole stack (HOST-3, HTTP.md row 52)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.fleet import Fleet
from tests.origin import Asked, Origin, Say, answer
from tests.servers import Valkey
from tests.shelf import Shelf

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("it is about Redis", "broker"),
]

FILES = 61
RATE = 20
BUSY = answer(429, b"", "Retry-After: 120")


@pytest.fixture
def fleet(broker: Valkey, tmp_path: Path, ledger_settings: Mapping[str, str], shelf: Shelf) -> Iterator[Fleet]:
    """With the limits that dlpipe has by itself, but for a rate at which a busy machine keeps up."""
    with broker.client() as client:
        client.flushall()
    settings = {**ledger_settings, **shelf.settings, "DLPIPE_NET_RATE_PER_S": str(RATE)}
    with Fleet(tmp_path / "home", broker, shelf, **settings) as made:
        made.worker("w1")
        made.worker("w2")
        made.beat()
        yield made


class Files:
    """Serves so many files, and knows when it was first asked and when each of them had been sent."""

    def __init__(self, origin: Origin) -> None:
        self.began: float | None = None
        self.sent: dict[str, float] = {}
        self._lock = threading.Lock()
        self.urls = [origin.on(f"/f{n}", self._say) for n in range(FILES)]

    def _say(self, asked: Asked) -> Say:
        with self._lock:
            self.began = self.began or time.monotonic()
            if asked.method == "GET":
                self.sent[asked.target] = time.monotonic()
        body = asked.target.encode() * 1000
        head = answer(200, body, 'ETag: "1"')
        return Say(head if asked.method == "GET" else head[: -len(body)])

    @property
    def took_s(self) -> float:
        assert self.began is not None
        return max(self.sent.values()) - self.began


def command(fleet: Fleet, *words: str) -> list[dict[str, Any]]:
    argv = ["dlpipe", *words, "--json"]
    code = f"import runpy, sys; sys.argv = {argv!r}; runpy.run_module('dlpipe', run_name='__main__')"
    return [json.loads(line) for line in fleet.python(code).splitlines()]


def bring(fleet: Fleet, *, busy: bool) -> tuple[float, int]:
    """A list on an origin of its own: how long its files took, and how often the busy URL was asked."""
    with Origin() as origin:
        files = Files(origin)
        wanted = [*files.urls[:30], *([origin.on("/busy", BUSY)] if busy else []), *files.urls[30:]]
        before = fleet.done()
        fleet.plan(wanted)
        fleet.until(lambda: fleet.done() == before + FILES, "all files of the list", within_s=60)
        return files.took_s, len(origin.of("/busy"))


@pytest.mark.timeout(300)
def test_a_busy_url_takes_no_time_from_the_others_of_its_list(fleet: Fleet) -> None:
    without, beside = [], []
    for _ in range(3):
        without.append(bring(fleet, busy=False)[0])
        took_s, asked = bring(fleet, busy=True)
        beside.append(took_s)
        assert asked == 1
    print(f"{FILES} files: {sorted(without)} s without /busy, {sorted(beside)} s with it")
    assert median(beside) <= 1.2 * median(without)
    assert {row.run for row in fleet.sql("SELECT run FROM artifact_jobs")} == {1}, "no other job was ever put off"
    waits = fleet.sql("SELECT error_code FROM jobs WHERE status = 'pending'")
    assert [row.error_code for row in waits] == ["retry_after"] * 3


def test_a_busy_url_and_its_origin_are_told_with_the_time_until_which_they_wait(fleet: Fleet) -> None:
    with Origin() as origin:
        url = origin.on("/busy", BUSY)
        fleet.plan([url])
        job_id = fleet.job_id(url)
        fleet.until(lambda: fleet.job(url).postponed_since is not None, "the busy answer")
        (why,) = command(fleet, "why", job_id)
        assert (why["situation"], why["code"], why["origin"]) == ("postponed", "retry_after", origin.url)
        assert why["until"] is not None
        (seen,) = command(fleet, "top")
        (row,) = [one for one in seen["waiting"] if one["code"] == "retry_after"]
        assert (row["origin"], row["until"], row["first_job_id"]) == (origin.url, why["until"], job_id)
        assert row["cooling_s"] is None


@pytest.mark.timeout(180)
def test_an_origin_that_is_busy_for_everything_holds_up_only_itself(fleet: Fleet) -> None:
    with Origin() as sick, Origin() as well:
        refused = [sick.on(f"/f{n}", answer(503, b"", "Retry-After: 600")) for n in range(30)]
        files = Files(well)
        assert sick.url.rpartition(":")[0] == well.url.rpartition(":")[0], "the same host at another port"
        fleet.plan([*refused, *files.urls])
        fleet.until(lambda: fleet.done() == FILES, "all files of the other origin", within_s=60)
        fleet.until(
            lambda: len(fleet.sql("SELECT 1 FROM artifact_jobs WHERE postponed_since IS NOT NULL")) == len(refused),
            "all jobs of the busy origin to be put off",
        )
        rows = fleet.sql(
            "SELECT error_code, attempts FROM jobs JOIN artifact_jobs USING (job_id) WHERE status <> 'completed'"
        )
        assert {row.error_code for row in rows} == {"retry_after", "host_cooling_down"}
        assert {row.attempts for row in rows} == {0}
        assert len(sick.asked) < len(refused) / 2, "the others were not even asked for"
        (seen,) = command(fleet, "top")
        told = {(one["origin"], one["code"]): one for one in seen["waiting"]}
        assert told.keys() == {(sick.url, "retry_after"), (sick.url, "host_cooling_down")}
        assert 500 < told[sick.url, "host_cooling_down"]["cooling_s"] <= 600
        assert all(one["until"] for one in told.values())
