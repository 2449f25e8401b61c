"""`make chaos`: a crowd of jobs, real servers and workers, and a seeded schedule of faults. `--help` says the rest."""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import check, conduct, faults, work
from tests.chaos.conduct import HEAL_WITHIN_S, Conductor, Story
from tests.chaos.town import Town, faketime

_HEALED = re.compile(r"reconcile ((?:\w+=\d+ ?)+)$", re.MULTILINE)


@dataclass
class Outcome:
    """A run that is over."""

    seed: int
    jobs: int
    story: Story
    findings: check.Findings
    healed: Counter[str]
    place: Path

    @property
    def violations(self) -> list[str]:
        return [*self.story.violations, *self.findings.lines()]

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "jobs": self.jobs,
            "seconds": round(self.story.seconds, 1),
            "faults": dict(self.story.faults),
            "left out": dict(self.story.skipped),
            "damaged by the last fault": self.story.damaged,
            "time to heal, s": self.story.heal_s and round(self.story.heal_s, 2),
            "allowed, s": HEAL_WITHIN_S,
            "rounds of reconcile meanwhile": self.story.heal_rounds,
            "healed": dict(self.healed),
            **self.findings.figures,
            "violations": self.findings.counts,
            "all violations": self.violations,
            "timeline": self.story.timeline,
        }


def play(seed: int, count: int, place: Path, say: Callable[[str], object], fault_count: int | None = None) -> Outcome:
    """One run in that directory; nothing of it is left running."""
    jobs = work.make(seed, count)
    plan = faults.schedule(seed, count, fault_count)
    say(f"seed {seed}: {count} jobs, {len(plan)} faults; the same seed gives the same jobs and the same schedule,")
    say("but not the same interleaving of the processes. Faults, and after how many finished jobs:")
    for fault in plan:
        say(f"  {fault.at_done:6d}  {fault}")
    if faketime() is None:
        say("  no libfaketime here (Debian package libfaketime): clocks are left alone")
    with Town(place, jobs) as town:
        conductor = Conductor(town, jobs, plan, say)
        story = conductor.run()
        rows = {table: town.fleet.sql(f"SELECT * FROM {table}") for table in check.TABLES}
        leases = town.leases()
        _keep_rows(place, rows)
        findings = check.check(
            jobs, town.origin.url, rows, town.fleet.home / "store", list(town.origin.accesses), leases
        )
        findings.ask_checker(town.url, town.fleet.home / "store")
    return Outcome(seed, count, story, findings, _healed(place), place)


def _keep_rows(place: Path, rows: check.Rows) -> None:
    """For a look afterwards: the rows as they were at the end, one file a table."""
    for table, all_rows in rows.items():
        lines = (json.dumps(dict(row._mapping), default=str) for row in all_rows)
        (place / f"{table}.jsonl").write_text("\n".join(lines))


def _healed(place: Path) -> Counter[str]:
    """What reconcile says in the workers' logs that it did, in all."""
    total: Counter[str] = Counter()
    for log in (place / "home").glob("w*.log"):
        for words in _HEALED.findall(log.read_text(errors="replace")):
            for word in words.split():
                name, _, count = word.partition("=")
                total[name] += int(count)
    return total


def show(outcome: Outcome, say: Callable[[str], object]) -> None:
    figures = outcome.as_json()
    say("")
    for title in ("jobs by end", "faults", "healed", "violations"):
        say(f"{title}:")
        for name, count in figures[title].items():
            say(f"  {name:45} {count:>12,}")
    for name in (
        "seconds", "runs", "requests", "bytes of results", "bytes sent by the origin",
        "bytes sent beyond what was needed", "damaged by the last fault", "time to heal, s", "allowed, s",
        "rounds of reconcile meanwhile",
    ):  # fmt: skip
        say(f"{name:47} {figures[name]:>12,}" if figures[name] is not None else f"{name:47} {'-':>12}")
    for line in outcome.violations:
        say(f"VIOLATION {line}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000, help="how many jobs (make chaos JOBS=20000)")
    parser.add_argument("--seed", type=int, help="replay the jobs and the schedule of a run (make chaos SEED=7)")
    parser.add_argument("--faults", type=int, help="how many faults, beside the two at the end")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the run, also when all is well")
    parser.add_argument("--report", type=Path, help="where the report is written as JSON")
    asked = parser.parse_args(arguments)
    if asked.jobs < 20:
        parser.error("--jobs: with fewer than 20 there is nothing to disturb")
    conduct.interrupted()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    place = Path(tempfile.mkdtemp(prefix="dlpipe-chaos-"))
    place.chmod(0o755)  # PostgreSQL runs as nobody when we are root
    report = asked.report or Path("build") / "chaos" / f"seed-{seed}-jobs-{asked.jobs}.json"
    began, say = time.monotonic(), functools.partial(print, flush=True)
    try:
        outcome = play(seed, asked.jobs, place, say, asked.faults)
    except KeyboardInterrupt:
        print(f"\nbroken off after {time.monotonic() - began:.0f} s; what was there is in {place}")
        return 130
    show(outcome, say)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(outcome.as_json(), indent=1))
    print(f"\nreport: {report}")
    if outcome.violations:
        print(f"VIOLATED. Everything is in {place}; the same schedule again: make chaos JOBS={asked.jobs} SEED={seed}")
        return 1
    if asked.keep:
        print(f"kept: {place}")
    else:
        shutil.rmtree(place)
    print("0 lost, 0 published twice, 0 wrong hashes, 0 orphans left")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
