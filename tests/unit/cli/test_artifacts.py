"""Registered files from the command line: listed, opened, exported; nothing but ids leaves (JOB-4, OPS-7)."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path

import pytest

from dlpipe.core.telemetry import COLUMNS
from tests.unit.cli.conftest import Desk

URL = "http://files.example/a.bin?token=hunter2"
BODY = bytes(range(256)) * 300
UNKNOWN = "00000000-0000-5000-8000-000000000000"


@pytest.fixture
def job(desk: Desk) -> str:
    desk.source.put(URL, BODY)
    return desk.fetch(URL, work_id="-w", artifact_id="a")


def test_artifacts_are_listed_without_their_places(desk: Desk, job: str) -> None:
    (artifact,) = desk.artifacts(job)
    for words in ([], [job]):
        ran = desk.command("artifacts", *words, "--json")
        assert ran.record["artifact_uuid"] == artifact.artifact_uuid
        assert (ran.record["job_id"], ran.record["sha256"]) == (job, artifact.sha256)
        assert artifact.storage_pointer not in ran.out
    assert artifact.sha256 in desk.command("artifacts").out
    unknown = desk.command("artifacts", UNKNOWN)
    assert (unknown.code, "[job_unknown]" in unknown.err) == (1, True)
    assert desk.command("artifacts", job, "--tenant", "other").code == 1


def test_an_artifact_is_opened_by_path_or_by_its_bytes(desk: Desk, job: str) -> None:
    (artifact,) = desk.artifacts(job)
    uuid = artifact.artifact_uuid
    path = Path(desk.command("open", uuid).out.rstrip("\n"))
    assert path.read_bytes() == BODY
    assert desk.command("open", uuid, "--json").record == {"artifact_uuid": uuid, "path": str(path)}
    assert desk.command("open", uuid, "-").raw == BODY
    assert desk.command("open", uuid, "-", "--json").code == 2
    unknown, foreign = desk.command("open", UNKNOWN), desk.command("open", uuid, "--project", "other")
    assert (unknown.code, unknown.out, unknown.err) == (foreign.code, foreign.out, foreign.err)
    assert (unknown.code, "[artifact_unknown]" in unknown.err) == (1, True)
    path.unlink()
    gone = desk.command("open", uuid)
    assert (gone.code, gone.out, "[file_missing]" in gone.err) == (1, "", True)


def test_a_file_on_a_disk_has_no_signed_link(desk: Desk, job: str) -> None:
    (artifact,) = desk.artifacts(job)
    refused = desk.command("open", artifact.artifact_uuid, "--link")
    assert (refused.code, refused.out, "[link_unsupported]" in refused.err) == (2, "", True)
    for words in (["--link", "-"], ["--expires", "5m"], ["--link", "--expires", "soon"], ["--link", "--expires", "8d"]):
        wrong = desk.command("open", artifact.artifact_uuid, *words)
        assert (wrong.code, wrong.out) == (2, ""), words
    unknown = desk.command("open", UNKNOWN, "--link")
    assert (unknown.code, "[artifact_unknown]" in unknown.err) == (1, True)


def test_an_export_tells_what_was_measured_and_no_place_nor_secret(desk: Desk, job: str, tmp_path: Path) -> None:
    (artifact,) = desk.artifacts(job)
    ran = desk.command("export")
    assert tuple(ran.record) == COLUMNS
    assert (ran.record["sha256"], ran.record["dedupe_action"], ran.record["bytes_written"]) == (
        artifact.sha256, "download", len(BODY),
    )  # fmt: skip
    assert ran.record["resume_decision"] == "fresh"
    assert "hunter2" not in ran.out
    assert artifact.storage_pointer not in ran.out
    (row,) = csv.DictReader(io.StringIO(desk.command("export", "--csv").out))
    assert tuple(row) == COLUMNS
    assert (row["sha256"], row["work_id"]) == (artifact.sha256, "'-w")  # no formula for a spreadsheet
    assert desk.command("export", "--tenant", "other").out == ""
    file = tmp_path / "out.jsonl"
    written = desk.command("export", "-o", str(file))
    assert (written.code, written.out) == (0, "")
    assert json.loads(file.read_text()) == ran.record
    assert not list(tmp_path.glob(".dlpipe-*"))


def test_parquet_without_pyarrow_says_how_to_get_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    file = tmp_path / "out.parquet"
    ran = desk.command("export", "--parquet", "-o", str(file))
    assert (ran.code, "[pyarrow_missing]" in ran.err, "pip install 'dlpipe[parquet]'" in ran.err) == (2, True, True)
    assert not file.exists()
    assert desk.command("export", "--parquet").code == 2


def test_parquet_holds_the_same_rows(desk: Desk, job: str, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    file = tmp_path / "out.parquet"
    assert desk.command("export", "--parquet", "-o", str(file)).code == 0
    (row,) = parquet.read_table(file).to_pylist()
    told = desk.command("export").record
    assert tuple(row) == COLUMNS
    assert {**row, "created_at": None, "quota": None} == {**told, "created_at": None, "quota": None}


@pytest.mark.slow
def test_a_long_export_is_written_in_bounded_memory(desk: Desk, job: str, tmp_path: Path) -> None:
    """Rows are read page by page: ten times as many cost no more memory."""
    desk.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
        "INSERT INTO artifacts SELECT printf('%08d-0000-5000-8000-000000000000', i), tenant_id, project_id, "
        "artifact_type, storage_backend, storage_pointer, content_type, byte_size, sha256, schema_version, created_at, "
        "created_by_job_id FROM artifacts, n"
    )
    desk.sql(
        "INSERT INTO job_artifacts SELECT created_by_job_id, 'result', CAST(substr(artifact_uuid, 1, 8) AS INTEGER), "
        "artifact_uuid FROM artifacts WHERE artifact_uuid LIKE '%-0000-5000-8000-000000000000'"
    )
    file = tmp_path / "out.jsonl"
    desk.command("export", "-o", str(file))  # what is made once is made
    tracemalloc.start()
    assert desk.command("export", "-o", str(file)).code == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lines = file.read_text().splitlines()
    assert len({json.loads(line)["artifact_uuid"] for line in lines}) == len(lines) == 20_001
    assert peak < 8 << 20


def test_why_tells_an_owner_and_nobody_else(desk: Desk, job: str) -> None:
    assert "The job is done" in desk.command("why", job).out
    waiting = desk.plan("http://files.example/later", not_before="2040-01-01")
    told = desk.command("why", waiting, "--json").record
    assert (told["situation"], "2040-01-01" in told["what"]) == ("not_before", True)
    desk.policy(window=0)
    assert desk.command("why", desk.plan("http://files.example/now"), "--json").record["situation"] == "window_full"
    unknown, foreign = desk.command("why", UNKNOWN), desk.command("why", job, "--tenant", "other")
    assert (unknown.code, unknown.err.replace(UNKNOWN, "ID")) == (foreign.code, foreign.err.replace(job, "ID"))
    assert unknown.code == 1
