"""`make bench`: every group in turn, the table at the end. Ctrl-C ends all that was started."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from ops.bench import growth, memory, pipeline, plan, report, small, stream, surroundings, table
from ops.bench.failure import Absent, BenchFailed
from ops.bench.ground import Ground, ground
from ops.bench.options import Options, parse
from ops.bench.processes import ROOT
from ops.bench.report import Measured
from ops.bench.table import Kind, Row

MEASURES: dict[str, Callable[[Ground, Options], list[Row]]] = {
    "stream": stream.measure,
    "pipeline": pipeline.measure,
    "plan": plan.measure,
    "small": small.measure,
    "growth": growth.measure,
    "memory": memory.measure,
}
PAGE = ROOT / "docs" / "benchmarks.md"
FAILED = "failed"
TRIAL_PAGE = ROOT / "build" / "bench" / "benchmarks.md"


def main(arguments: list[str]) -> int:
    only, options, write = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    page = PAGE if write or not options.is_trial else TRIAL_PAGE
    environment = surroundings.line(surroundings.surroundings(ROOT))
    measured: list[Measured] = []
    try:
        for group in only:
            measured.append(_measure(group, options, environment))
            report.write(page, measured[-1:])  # what an interrupted run has measured is kept
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything that was started is ended", file=sys.stderr)
        return 130
    except BenchFailed as failure:  # before a group began
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    rows = [row for one in measured for row in one.rows]
    print(f"\n{table.plain(rows)}\n\n{environment}")
    print(f"written: {page.relative_to(ROOT)} and {page.with_suffix('.json').name}")
    if options.is_trial:
        print("a trial: fewer rounds, or less to do, than the targets ask for")
    if any(row.missing.startswith(FAILED) for row in rows):
        return 2
    return 1 if not options.is_trial and any(row.met is False or row.missing for row in rows) else 0


def _measure(group: str, options: Options, environment: str) -> Measured:
    """On a ground of its own, so that no group inherits another's servers or files."""
    at, before = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", surroundings.load()
    print(f"{group}: {options.rounds} rounds", file=sys.stderr, flush=True)
    with ground() as place:
        try:
            rows = MEASURES[group](place, options)
        except Absent as absent:
            rows = [_without(group, str(absent))]
        except BenchFailed as failure:
            print(f"bench: {failure}", file=sys.stderr)
            rows = [_without(group, f"{FAILED}: {str(failure).partition(chr(10))[0]}")]
    print(table.plain(rows), file=sys.stderr, flush=True)
    return Measured(group, tuple(rows), at, str(options), options.is_trial, (before, surroundings.load()), environment)


def _without(group: str, why: str) -> Row:
    """No figure of a group is believed when one of its results was wrong."""
    return Row(group, f"all of {group}", "-", Kind.TIMES_FASTER, None, "", missing=why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
