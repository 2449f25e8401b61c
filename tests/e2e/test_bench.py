"""A tiny run of every benchmark, end to end, so that none of them rots. What it measures means nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench import __main__ as bench
from ops.bench import ground, processes, stream
from ops.bench.failure import BenchFailed
from ops.bench.options import GROUPS
from tests.servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("bench")]

TINY = ["--rounds", "1", "--size", "3M", "--jobs", "20", "--plan-rows", "500", "--growth-rows", "500"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run works and writes, instead of in the checkout."""
    monkeypatch.setattr(ground, "SCRATCH", tmp_path / "run")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "TRIAL_PAGE", tmp_path / "build" / "benchmarks.md")
    return tmp_path


@pytest.mark.parametrize("group", GROUPS)
def test_a_tiny_run_measures_every_row_and_cleans_up(group: str, place: Path) -> None:
    assert bench.main(["--only", group, *TINY]) == 0
    (told,) = json.loads((place / "build" / "benchmarks.json").read_text())["groups"]
    rows = told["rows"]
    assert rows
    assert told["trial"]
    for row in rows:
        if row["missing"].startswith("not installed"):  # a peer; the programs that tests need are another matter
            continue
        assert row["missing"] == ""
        assert len(row["ours"]) == len(row["theirs"]) == 1, row
        assert row["ratio"] is not None
    assert not (place / "run").exists(), "the scratch folder is left"
    assert _processes_in(place) == []


def test_other_bytes_than_the_servers_end_the_group(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(sample: ground.Sample, folder: Path) -> tuple[float, Path]:
        (folder / "file").write_bytes(b"\0" * sample.size)
        return 0.001, folder / "file"

    monkeypatch.setattr(stream, "ours", wrong)
    assert bench.main(["--only", "stream", *TINY]) == 2
    (row,) = json.loads((place / "build" / "benchmarks.json").read_text())["groups"][0]["rows"]
    assert row["missing"].startswith("failed: ours left other bytes")
    assert row["ratio"] is None


def test_no_room_is_said_before_anything_is_written(place: Path) -> None:
    with ground.ground() as made, pytest.raises(BenchFailed, match="to spare"):
        made.need(1 << 60, "a file")


def test_an_interrupted_run_ends_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ops.bench import ground, __main__ as bench\n"
        f"ground.SCRATCH = Path({str(tmp_path / 'run')!r})\n"
        f"bench.TRIAL_PAGE = Path({str(tmp_path / 'benchmarks.md')!r})\n"
        f"sys.exit(bench.main(['--only', 'pipeline', *{TINY!r}]))"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], cwd=processes.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: len(_processes_in(tmp_path)) > 5, "workers to run", 60)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()
    assert run.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    wait_until(lambda: _processes_in(tmp_path) == [], "the end of all children")
    assert not (tmp_path / "run").exists()


def _processes_in(place: Path) -> list[int]:
    """Living processes whose folder, or whose command, is in there."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            inside = str(place) in os.readlink(each / "cwd") or str(place).encode() in (each / "cmdline").read_bytes()
        except OSError:
            continue
        if inside and int(each.name) != os.getpid():
            found.append(int(each.name))
    return found
