"""`dlpipe fetch` of one small file: how long somebody waits for it, beyond what Python itself takes to start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ops.bench.drive import up
from ops.bench.ground import Ground, Sample, expect, settle
from ops.bench.options import Options
from ops.bench.processes import environment, timed
from ops.bench.table import Kind, Row

GROUP = "small"
_TIMEOUT_S = 60.0


def measure(ground: Ground, options: Options) -> list[Row]:
    files = iter(ground.small("one", 3 * options.rounds + 2))
    took: dict[str, list[float]] = {name: [] for name in ("python", "new", "cold", "up")}
    with ground.passing("home") as known, ground.passing("up") as running, up(running):
        _fetch(known, next(files))
        _fetch(running, next(files))
        for _ in range(options.rounds):
            took["python"].append(timed([sys.executable, "-c", "pass"], environment(known), known, _TIMEOUT_S)[0])
            with ground.passing("new") as new:
                took["new"].append(_fetch(new, next(files)))
            took["cold"].append(_fetch(known, next(files)))
            took["up"].append(_fetch(running, next(files)))
    own = "Python's own start"

    def row(what: str, name: str, bound: float | None) -> Row:
        return Row(GROUP, what, own, Kind.MORE, bound, "s", tuple(took[name]), tuple(took["python"]))

    return [
        row("`dlpipe fetch` of one 10 KiB file, stack cold, in a new data directory", "new", 2.5),
        row("the same, in a data directory that is there", "cold", None),
        row("the same, with the stack up", "up", 0.3),
    ]


def _fetch(place: Path, sample: Sample) -> float:
    settle()
    env = environment(place, DLPIPE_HOME=str(place / "home"), DLPIPE_ALLOW_PRIVATE="1")
    argv = [sys.executable, "-m", "dlpipe", "fetch", "--json", "--quiet", sample.url]
    seconds, said = timed(argv, env, place, _TIMEOUT_S)
    expect(Path(json.loads(said)["path"]), sample, "dlpipe fetch")
    return seconds
