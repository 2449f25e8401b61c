"""Memory: what a worker takes at most while it streams a large file, beyond what it takes when idle."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ops.bench.drive import up
from ops.bench.failure import BenchFailed
from ops.bench.ground import Ground, Sample, expect
from ops.bench.options import Options
from ops.bench.table import Kind, Row

GROUP = "memory"
BOUND_MIB = 48.0


def measure(ground: Ground, options: Options) -> list[Row]:
    sample = ground.sample(options.sizes[-1])
    (first,) = ground.small("memory", 1)
    rounds = [_round(ground, sample, first) for _ in range(options.rounds)]
    what = f"peak resident memory of a worker streaming {sample.size / (1 << 20):g} MiB"
    peaks = tuple(one["peak"] for one in rounds)
    return [
        Row(GROUP, what, "an idle worker that has had no job yet", Kind.MORE, BOUND_MIB, "MiB",
            peaks, tuple(one["idle"] for one in rounds), note="VmHWM while streaming, VmRSS idle"),
        Row(GROUP, what, "an idle worker that has fetched a small file", Kind.MORE, None, "MiB",
            peaks, tuple(one["warm"] for one in rounds)),
        Row(GROUP, "the same after it, proportional (PSS)", "an idle worker that has had no job yet", Kind.MORE, None,
            "MiB", tuple(one["pss_after"] for one in rounds), tuple(one["pss_idle"] for one in rounds)),
    ]  # fmt: skip


def _round(ground: Ground, sample: Sample, first: Sample) -> dict[str, float]:
    told: dict[str, float] = {}
    with (
        ground.passing("memory") as place,
        up(place, DLPIPE_WORKER_PROCESSES="1", DLPIPE_NET_RATE_PER_S="0") as stack,
    ):
        pid = stack.services["worker1"]
        told |= {"idle": _status(pid, "VmRSS"), "pss_idle": _pss(pid)}
        stack.fetch([first])
        told["warm"] = _status(pid, "VmRSS")
        _forget_peak(pid)
        stack.fetch([sample])
        told |= {"peak": _status(pid, "VmHWM"), "pss_after": _pss(pid)}
        expect(stack.file(sample), sample, "the worker")
    return told


def _status(pid: int, name: str) -> float:
    """In MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise BenchFailed(f"{sys.platform} does not tell {name}")


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise BenchFailed("no Pss in smaps_rollup")


def _forget_peak(pid: int) -> None:
    """From now on VmHWM is the peak of what comes; where that is not allowed it is the peak of all, which is more."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
