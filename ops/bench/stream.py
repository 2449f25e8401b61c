"""Bytes: from a server on this machine to a verified, durable, published file; and over a slow line, in segments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from ops.bench.failure import Absent, BenchFailed
from ops.bench.ground import SLOW_BYTES_S, Ground, Sample, expect, settle
from ops.bench.options import Options
from ops.bench.processes import ROOT, environment, program, timed
from ops.bench.table import Kind, Row, turns
from ops.bench.throttle import LATE_S

GROUP = "stream"
SEGMENTS = 4
_TIMEOUT_S = 900.0

Fetch = Callable[[Sample, Path], tuple[float, Path]]
"""Fetch into that empty folder; answer the seconds it took, and the file."""


def ours(sample: Sample, folder: Path, *how: str, **settings: str) -> tuple[float, Path]:
    env = environment(folder, DLPIPE_HOME=str(folder / "home"), DLPIPE_ALLOW_PRIVATE="1", **settings)
    argv = [sys.executable, "-m", "ops.bench.ours", sample.url, *how]
    told = json.loads(timed(argv, env, ROOT, _TIMEOUT_S)[1])
    return float(told["seconds"]), Path(told["path"])


def without_reuse(sample: Sample, folder: Path) -> tuple[float, Path]:
    """Each request on a connection of its own, as to an origin that sent bytes behind an answer."""
    return ours(sample, folder, "once")


def limit(sample: Sample, folder: Path) -> tuple[float, Path]:
    at = urlsplit(sample.url)
    argv = [sys.executable, "-m", "ops.bench.peers.limit", str(at.hostname), str(at.port), at.path, str(folder)]
    told = json.loads(timed(argv, environment(folder), ROOT, _TIMEOUT_S)[1])
    return float(told["seconds"]), Path(told["path"])


def curl(sample: Sample, folder: Path) -> tuple[float, Path]:
    to = folder / "file"
    argv = [program("curl", "curl"), "--silent", "--show-error", "--fail", "-o", str(to), sample.url]
    return timed(argv, environment(folder), folder, _TIMEOUT_S)[0], to


def _hashed_by(command: str) -> Fetch:
    def fetch(sample: Sample, folder: Path) -> tuple[float, Path]:
        program("curl", "curl")
        script = (
            f"set -eo pipefail; curl --silent --show-error --fail '{sample.url}' | tee part | {command} >sum; "
            f'read -r sum _ <sum; [ "$sum" = {sample.sha256} ]; sync part; mv part file; sync .'
        )
        return timed(["bash", "-c", script], environment(folder), folder, _TIMEOUT_S)[0], folder / "file"

    return fetch


def aria2c(sample: Sample, folder: Path) -> tuple[float, Path]:
    argv = [
        program("aria2c", "aria2"), "--no-conf", "--quiet", "-x16", f"--checksum=sha-256={sample.sha256}",
        "-d", str(folder), "-o", "file", sample.url,
    ]  # fmt: skip
    return timed(argv, environment(folder), folder, _TIMEOUT_S)[0], folder / "file"


AGAINST: tuple[tuple[str, str, Fetch, float | None], ...] = (
    ("curl", "`curl` to a file, no hash, no fsync", curl, 1.3),
    ("tee", "`curl ¦ tee ¦ sha256sum` + fsync + mv", _hashed_by("sha256sum"), 3.0),
    ("openssl", "the same with `openssl sha256`", _hashed_by("openssl dgst -sha256 -r"), None),
    ("aria2c", "`aria2c -x16 --checksum`", aria2c, 4.0),
    ("once", "the same, of a marked origin: no connection is used twice", without_reuse, None),
    ("limit", "a raw-socket loop with hash thread (the limit)", limit, 0.85),
)


def measure(ground: Ground, options: Options) -> list[Row]:
    rows: list[Row] = []
    for size in options.sizes:
        rows += _race(ground, ground.sample(size), options.rounds)
    return [*rows, _segments(ground, ground.sample(options.slow_bytes), options.rounds)]


def _race(ground: Ground, sample: Sample, rounds: int) -> list[Row]:
    fetches: dict[str, Fetch] = {"ours": ours, **{name: fetch for name, _, fetch, _ in AGAINST}}
    took, missing = _interleaved(ground, sample, fetches, rounds, warm=True)
    what = f"{sample.size / (1 << 20):g} MiB to a verified, durable, published file (stream + finalize)"
    return [
        Row(GROUP, what, against, Kind.TIMES_FASTER, bound, "s",
            tuple(took["ours"]), tuple(took[name]), missing.get(name, ""))
        for name, against, _, bound in AGAINST
    ]  # fmt: skip


def _segments(ground: Ground, sample: Sample, rounds: int) -> Row:
    slow = Sample(sample.url.replace(ground.url, ground.slow_url), sample.size, sample.sha256)

    def over(connections: int) -> Fetch:
        # Files smaller than 64 MiB come over one connection unless told otherwise; only a trial's are.
        least = str(max(1 << 20, min(sample.size, 64 << 20)))
        wanted = {"DLPIPE_STREAM_SEGMENTS": str(connections), "DLPIPE_STREAM_SEGMENTS_MIN_BYTES": least}
        return lambda sample, folder: ours(sample, folder, **wanted)

    took, _ = _interleaved(ground, slow, {"one": over(1), "some": over(SEGMENTS)}, rounds, warm=False)
    fastest = 0.95 * sample.size / SLOW_BYTES_S
    # What the line makes good, when it is woken late, it may have made good at the end: little, but not of a trial.
    if min(took["one"]) < fastest - LATE_S or min(took["some"]) < fastest / SEGMENTS - LATE_S:
        raise BenchFailed(f"the line was faster than {SLOW_BYTES_S} bytes/s for each connection: {took}")
    return Row(
        GROUP,
        f"{sample.size / 1e6:.4g} MB from a server that gives a connection 5 MB/s, {SEGMENTS} segments",
        "one connection",
        Kind.TIMES_FASTER,
        0.9 * SEGMENTS,
        "s",
        tuple(took["some"]),
        tuple(took["one"]),
    )


def _interleaved(
    ground: Ground, sample: Sample, fetches: dict[str, Fetch], rounds: int, *, warm: bool
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds by contestant, and why some of them are missing. A warm round is not counted."""
    took: dict[str, list[float]] = {name: [] for name in fetches}
    missing: dict[str, str] = {}
    for number in range(-1 if warm else 0, rounds):
        for name in turns(list(fetches), number):
            if name in missing:
                continue
            with ground.passing(name) as folder:
                settle()
                try:
                    seconds, path = fetches[name](sample, folder)
                except Absent as absent:
                    missing[name] = str(absent)
                    continue
                expect(path, sample, name)
            if number >= 0:
                took[name].append(seconds)
    return took, missing
