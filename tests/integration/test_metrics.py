"""What is counted is what stands in the ledger, whoever is killed (OPS-7): 500 jobs on real workers, then a scrape."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlpipe.core import flow
from dlpipe.store.sidecar import Sidecar
from tests.fleet import QUICK, Fleet, Process
from tests.hostile import honest
from tests.integration.test_worker import children_of, listening
from tests.origin import Asked, Origin, Say, Script, Then, answer
from tests.servers import Valkey, free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.own_engines("hardlinks are counted", "store"),
    pytest.mark.own_engines("500 jobs at once, which SQLite would take long for", "ledger"),
]

Samples = Mapping[str, Mapping[tuple[str, ...], float]]
TENANT, REQUEST, SECRET = "acme", "request-7", "5ec2e7T0ken"
MIB = 1 << 20
GONE, AGAIN, CUT, TWINS, ONCE_MORE = 40, 20, 4, 60, 20
PLAIN = 500 - GONE - AGAIN - CUT - TWINS - ONCE_MORE - 1
LARGE = random.Random(1).randbytes(2 * MIB + 4_000)
HALF = MIB + 70_000


def first_get(broken: Callable[[bytes], Say], body: bytes) -> Script:
    """The first GET goes wrong; HEAD, and all later ones, do not."""
    lock, right, seen = threading.Lock(), honest(body), list[Asked]()

    def script(asked: Asked) -> Say:
        with lock:
            if asked.method == "GET":
                seen.append(asked)
            wrong = asked.method == "GET" and len(seen) == 1
        return broken(right(asked).data) if wrong else right(asked)

    return script


def bodies(count: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    return (chance.randbytes(1_000 + chance.randrange(2_000)) for _ in range(count))


def half(whole: bytes) -> bytes:
    return whole[: len(whole) - len(LARGE) + HALF]


@dataclass
class Town:
    """What there is to fetch: all kinds of ends, in numbers that the constants say."""

    origin: Origin
    after_half: Then
    """What the server of the held file does half-way: hang up, or say nothing more."""
    urls: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)
    """With the bytes of some of the first ones."""
    again: list[str] = field(default_factory=list)
    held: str = ""

    def __post_init__(self) -> None:
        on = self.origin.on
        for n, body in enumerate(bodies(PLAIN, 1)):
            self.urls.append(on(f"/plain-{n}", honest(body)))
        for n, body in enumerate(bodies(TWINS // 2, 2)):
            self.urls.append(on(f"/twin-{n}-a", honest(body)))
            self.twins.append(on(f"/twin-{n}-b", honest(body)))
        for n, body in enumerate(bodies(AGAIN, 3)):
            self.urls.append(on(f"/again-{n}", first_get(lambda _: Say(answer(503)), body)))
        for n in range(CUT):
            self.urls.append(on(f"/cut-{n}", first_get(lambda whole: Say(half(whole), Then.CLOSE), LARGE)))
        for n in range(GONE):
            self.urls.append(on(f"/gone-{n}", answer(404)))
        self.held = on("/held", first_get(lambda whole: Say(half(whole), self.after_half), LARGE))
        self.urls.insert(100, self.held)
        self.urls = [f"{url}?token={SECRET}" for url in self.urls]
        # Known by then, and so skipped: further works with addresses of the first ones.
        self.again = self.urls[:ONCE_MORE]


def scrape(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text(port)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def text(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return str(page.read().decode())


@pytest.fixture
def fleet(broker: Valkey, tmp_path: Path, postgres_url: str, broker_settings: Mapping[str, str]) -> Iterator[Fleet]:
    with broker.client() as client:
        client.flushall()
    quick = {
        **QUICK, "DLPIPE_DATABASE_URL": postgres_url, "DLPIPE_NET_RATE_PER_S": "0", "DLPIPE_NET_SLOTS_PER_HOST": "0",
        "DLPIPE_NET_RETRIES": "0", "DLPIPE_NET_BREAKER_FAILURES": "0", "DLPIPE_METRICS_PORT": str(free_port()),
        "DLPIPE_METRICS_REFRESH_S": "0.2", "DLPIPE_LEASE_TTL_S": "20", "DLPIPE_LEASE_RENEW_S": "5",
        **broker_settings,
    }  # fmt: skip
    with Fleet(tmp_path / "home", broker, **quick) as fleet:
        yield fleet


@pytest.mark.parametrize(("pool", "form"), [("prefork", "json"), ("threads", "text")])
def test_after_500_jobs_a_scrape_says_what_the_ledger_says(fleet: Fleet, pool: str, form: str) -> None:
    port = int(fleet.env["DLPIPE_METRICS_PORT"])
    with Origin() as origin:
        town = Town(origin, Then.HANG if pool == "prefork" else Then.CLOSE)
        more = ["--max-tasks-per-child", "100"] if pool == "prefork" else []
        worker = fleet.worker("w1", *more, pool=pool, size=2 if pool == "prefork" else 4, DLPIPE_LOG_FORMAT=form)
        fleet.beat()
        fleet.until(lambda: worker.says("metrics are at"), "the page", worker)
        assert listening(worker.pid, port) == {"127.0.0.1"}
        before = set(children_of(worker.pid))
        fleet.plan(town.urls, tenant_id=TENANT, request_id=REQUEST)
        if pool == "prefork":
            os.kill(holder_of(fleet, town, worker), signal.SIGKILL)
        with Reader(port) as reader:  # also while children are forked and killed
            fleet.until(lambda: reader.ended() == len(town.urls), "all jobs to end", worker, within_s=300)
            fleet.plan(town.again, tenant_id=TENANT, request_id=REQUEST, work_id="another")
            fleet.plan(town.twins, tenant_id=TENANT, request_id=REQUEST, project_id="other")
            fleet.until(lambda: reader.ended() == 500, "the rest to end", worker, within_s=120)
        assert fleet.sql("SELECT count(*) AS n FROM jobs")[0].n == 500
        if pool == "prefork":
            assert not before & set(children_of(worker.pid)), "no child lived through all of it"
        settle(fleet, port, worker)
        found = scrape(port)
        assert shown(found) == stands(fleet)
        assert happened(found) == recorded(fleet)
        assert_the_run_had_it_all(fleet, found, pool)
        page = text(port)
        assert not [word for word in (SECRET, TENANT, REQUEST, "127.0.0.1", "plain-") if word in page]
        assert_one_line_for_each_op(fleet, worker, form)


# ── both sides ────────────────────────────────────────────────────────────────────────────────────


class Reader:
    """Reads the page all the time, as some Prometheus does."""

    def __init__(self, port: int) -> None:
        self._port, self._over, self._last = port, threading.Event(), Counter[str]()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._over.wait(0.2):
            counts = Counter[str]()
            for (_, status), n in scrape(self._port)["dlpipe_jobs"].items():
                counts[status] += int(n)
            self._last = counts

    def ended(self) -> int:
        assert self._thread.is_alive(), "a scrape failed"
        return sum(n for status, n in self._last.items() if status not in ("pending", "processing"))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


def settle(fleet: Fleet, port: int, worker: Process) -> None:
    """Reconcile has marked what was left behind, and the page has caught up with the ledger."""
    overtaken = (
        "SELECT count(*) AS n FROM artifact_ops o JOIN artifact_jobs j USING (job_id)"
        " WHERE o.state = 'started' AND j.fence > o.fence"
    )
    fleet.until(lambda: fleet.sql(overtaken)[0].n == 0, "abandoned ops to be marked", worker)
    fleet.until(lambda: shown(scrape(port)) == stands(fleet), "the page to show the ledger", worker)
    fleet.until(lambda: happened(scrape(port)) == recorded(fleet), "the last events to be told", worker)


FIGURES = (
    "jobs", "dead_letters", "artifacts", "artifact_bytes", "artifacts_faulty", "jobs_due", "jobs_due_later",
    "jobs_in_flight", "jobs_held",
)  # fmt: skip


def shown(found: Samples) -> dict[str, Any]:
    """The page's figures of the ledger."""
    return {name: dict(found[f"dlpipe_{name}"]) for name in FIGURES}


def stands(fleet: Fleet) -> dict[str, Any]:
    def by(query: str) -> dict[tuple[str, ...], float]:
        return {tuple(row)[:-1]: float(tuple(row)[-1]) for row in fleet.sql(query)}

    open_jobs = "SELECT count(*) FROM artifact_jobs WHERE"
    return {
        "jobs": by("SELECT job_type, status, count(*) FROM jobs GROUP BY job_type, status"),
        "dead_letters": by("SELECT error_code, count(*) FROM jobs WHERE status = 'failed' GROUP BY error_code"),
        "artifacts": by("SELECT count(*) FROM artifacts"),
        "artifact_bytes": by("SELECT sum(byte_size) FROM artifacts"),
        "artifacts_faulty": by("SELECT count(*) FROM artifact_faults WHERE mended_at IS NULL"),
        "jobs_due": by(f"{open_jobs} due_at <= now() AND published_at IS NULL"),
        "jobs_due_later": by(f"{open_jobs} due_at > now() AND published_at IS NULL"),
        "jobs_in_flight": by(f"{open_jobs} published_at IS NOT NULL"),
        "jobs_held": by(f"{open_jobs} lease_until IS NOT NULL"),
    }


STAGE_OF = {row.op.value: row.name for row in flow.STAGES}


def happened(found: Samples) -> dict[str, Any]:
    """The page's counters, as far as the ledger knows the same."""
    failures: Counter[str] = Counter()
    for (code, _), n in found["dlpipe_failures_total"].items():
        failures[code] += int(n)
    return {
        "ops": positive(found["dlpipe_stages_recorded_total"]),
        "timed": positive(found["dlpipe_stage_seconds_count"]),
        "failures": dict(failures),
        "for good": {code: n for (code, then), n in found["dlpipe_failures_total"].items() if then == "for_good"},
        "received": found["dlpipe_received_bytes_total"][()],
        "resumed": found["dlpipe_resumed_bytes_total"][()],
        "decisions": positive(found["dlpipe_resume_decisions_total"]),
        "actions": positive(found["dlpipe_dedupe_actions_total"]),
        "saved": found["dlpipe_dedupe_saved_bytes_total"][()],
        "abandoned": found["dlpipe_reconcile_findings_total"].get(("ops_abandoned",), 0),
    }


def recorded(fleet: Fleet) -> dict[str, Any]:
    ops = fleet.sql("SELECT op_type, state, result_code, result_json FROM artifact_ops")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in STAGE_OF}
    for op in ops:
        if op.state == "finished":
            results[op.op_type].append(json.loads(op.result_json))
    counts = {STAGE_OF[name]: float(len(found)) for name, found in results.items()}
    actions = Counter(one["action"] for one in results["DEDUPE"])
    actions["skipped"] += sum(one["known_sha256"] is not None for one in results["HEAD"])
    dead = fleet.sql("SELECT error_code, count(*) AS n FROM jobs WHERE status = 'failed' GROUP BY error_code")
    return {
        "ops": counts,
        "timed": counts,
        "failures": dict(Counter(op.result_code for op in ops if op.state == "failed")),
        "for good": {row.error_code: row.n for row in dead},
        "received": sum(one["bytes_written"] for one in results["STREAM"]),
        "resumed": sum(one["resumed_from_bytes"] for one in results["STREAM"]),
        "decisions": dict(Counter(one["decision"] for one in results["RESUME"])),
        "actions": {action: n for action, n in actions.items() if n},
        "saved": sum(one["saved_bytes"] for one in results["DEDUPE"]),
        "abandoned": sum(op.state == "abandoned" for op in ops),
    }


def positive(found: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    return {label: n for (label,), n in found.items() if n}


def assert_the_run_had_it_all(fleet: Fleet, found: Samples, pool: str) -> None:
    """Else the comparison would say little."""
    told = happened(found)
    assert told["for good"] == {"http_404": GONE}
    assert told["failures"]["http_5xx"] == AGAIN
    assert told["failures"]["body_cut"] >= CUT
    assert told["decisions"]["resume"] == CUT + 1
    assert told["actions"]["skipped"] == ONCE_MORE + CUT  # a known address, or the same file
    assert told["actions"]["hardlink"] == TWINS // 2
    assert told["resumed"] > CUT * MIB
    assert found["dlpipe_hints_sent_total"][()] > 0
    requeued = found["dlpipe_reconcile_findings_total"].get(("orphans_requeued",), 0)
    assert requeued == (1 if pool == "prefork" else 0)
    manifest = fleet.sql("SELECT sum(bytes_written) AS n FROM manifest")
    assert told["received"] == manifest[0].n


# ── the lines ─────────────────────────────────────────────────────────────────────────────────────


def assert_one_line_for_each_op(fleet: Fleet, worker: Process, form: str) -> None:
    ops = fleet.sql("SELECT job_id, run, op_type FROM artifact_ops WHERE state = 'finished'")
    wanted = Counter((str(row.job_id), row.run, STAGE_OF[row.op_type]) for row in ops)
    lines = worker.log.read_text().splitlines()
    if form == "json":
        said = [json.loads(line) for line in lines if line.startswith("{")]
        assert all({"time", "level", "logger", "message"} <= set(one) for one in said)
        done = [one for one in said if one["message"].startswith("done: ")]
        failed = [one for one in said if one["message"].startswith("failed: ")]
    else:
        done = [fields(line) for line in lines if " done: " in line]
        failed = [fields(line) for line in lines if " failed: " in line]
    assert Counter((one["job_id"], int(one["run"]), one["stage"]) for one in done) == wanted
    assert {(one["tenant"], one["request_id"]) for one in [*done, *failed]} == {(TENANT, REQUEST)}
    assert all(int(one["elapsed_ms"]) >= 0 for one in done)
    streams = sum(int(one["bytes"]) for one in done)
    assert streams == fleet.sql("SELECT sum(bytes_written) AS n FROM manifest")[0].n
    assert Counter(one["code"] for one in failed) == recorded(fleet)["failures"]
    assert all(len(str(one["debug_id"])) == 12 for one in failed)
    assert not any(SECRET in line for line in lines)


def fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", line))


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def holder_of(fleet: Fleet, town: Town, worker: Process) -> int:
    """The child that is in the middle of the held stream, once it has a checkpoint to go on from."""
    found: list[int] = []

    def look() -> bool:
        job = fleet.job(f"{town.held}?token={SECRET}")
        found[:] = [int(job.lease_owner.split(".")[1])] if job.lease_owner else []
        try:
            side = Sidecar.load((fleet.home / "store" / ".staging" / TENANT / f"{job.part}.json").read_bytes())
        except FileNotFoundError:
            return False
        return bool(found and side and side.checkpoints and side.checkpoints[-1].offset >= MIB)

    fleet.until(look, "the held stream to have a child and a checkpoint", worker, within_s=180)
    assert found[0] in children_of(worker.pid)
    return found[0]
