"""Purge, gc and backfill from the command line: what they say, in both forms, and how they end. OPS-8, PLAN-7."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

import dlpipe
from dlpipe import wiring
from dlpipe.store.archive import FileArchive
from dlpipe.store.trash import LocalTrash
from tests.unit.cli.conftest import Desk
from tests.world import sha256

URL = "http://files.example/a.bin?token=hunter2"
BODY = b"bytes" * 100


@pytest.fixture
def job(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    def archive(directory: Path | None, format_: str) -> FileArchive:
        return FileArchive(directory or tmp_path / "archive", format_)

    monkeypatch.setattr(wiring, "archive", archive)
    monkeypatch.setattr(wiring, "trash", lambda: LocalTrash(desk.root))
    desk.source.put(URL, BODY)
    return desk.fetch(URL)


def test_a_purge_says_what_it_did_and_where_the_archive_is(desk: Desk, job: str, tmp_path: Path) -> None:
    dry = desk.command("purge", "--older-than", "0s", "--dry-run", "--json")
    assert (dry.code, dry.record) == (0, {"dry_run": True, "jobs": 1, "by_status": {"completed": 1}})
    assert "1 job would be purged" in desk.command("purge", "--older-than", "0s", "--dry-run").out
    assert desk.command("purge", "--older-than", "90d").out == "0 jobs purged\n"
    assert desk.command("purge", "--older-than", "0s", "--status", "failed").out == "0 jobs purged\n"
    ran = desk.command("purge", "--older-than", "0s", "--json", "--archive", str(tmp_path / "here"))
    assert (ran.code, ran.record["purged"], ran.record["kept"]) == (0, 1, 0)
    file = Path(ran.record["archive"]["path"])
    assert file.parent == tmp_path / "here"
    assert sha256(file.read_bytes()) == ran.record["archive"]["sha256"]
    assert json.loads(gzip.decompress(file.read_bytes()))["job_id"] == job
    assert "hunter2" not in ran.out + ran.err
    shown = desk.command("show", job)
    assert (shown.code, "[job_purged]" in shown.err, file.name in shown.err) == (1, True, True)
    foreign, unknown = desk.command("show", job, "--tenant", "other"), desk.command("show", job[:-1] + "f")
    assert foreign.err.replace(job, "") == unknown.err.replace(job[:-1] + "f", "")


@pytest.mark.parametrize("name", "show why ops artifacts cancel pause resume retry refresh replay".split())
def test_every_command_says_of_a_purged_job_where_its_record_is(desk: Desk, job: str, name: str) -> None:
    archive = desk.command("purge", "--older-than", "0s", "--json").record["archive"]["name"]
    ran = desk.command(name, job)
    assert (ran.code, "[job_purged]" in ran.err, archive in ran.err) == (1, True, True)
    foreign, unknown = desk.command(name, job, "--project", "other"), desk.command(name, job[:-1] + "f")
    assert foreign.err.replace(job, "") == unknown.err.replace(job[:-1] + "f", "")
    assert "[job_unknown]" in unknown.err


def test_what_is_left_of_a_purged_job_is_told_until_it_is_planned_again(desk: Desk, job: str) -> None:
    assert dlpipe.get_purged_job(job) is None
    archive = desk.command("purge", "--older-than", "0s", "--json").record["archive"]
    left = dlpipe.get_purged_job(job)
    assert left is not None
    assert (left.status, left.archive, left.archive_sha256) == ("completed", archive["name"], archive["sha256"])
    assert dlpipe.get_job(job) is None
    assert dlpipe.get_purged_job(job, tenant_id="other") is None
    assert desk.plan(URL) == job
    assert dlpipe.get_purged_job(job) is None


def test_a_purge_of_another_tenant_takes_nothing(desk: Desk, job: str) -> None:
    before = desk.everything()
    for words in (["--tenant", "other"], ["--project", "other"]):
        assert desk.command("purge", "--older-than", "0s", *words).out == "0 jobs purged\n"
    assert desk.everything() == before


@pytest.mark.parametrize("words", [[], ["--older-than", "90"], ["--older-than", "-1d"], ["--older-than", "1y"],
                                   ["--older-than", "1d", "--status", "pending"]])  # fmt: skip
def test_a_purge_that_cannot_be_meant_is_refused(desk: Desk, job: str, words: list[str]) -> None:
    before = desk.everything()
    assert desk.command("purge", *words).code == 2
    assert desk.everything() == before


def test_gc_looks_first_and_collects_what_was_given_up(desk: Desk, job: str) -> None:
    (artifact,) = desk.artifacts(job)
    desk.command("purge", "--older-than", "0s", "--artifacts")
    retired = desk.command("open", artifact.artifact_uuid)
    assert (retired.code, "[artifact_retired]" in retired.err) == (1, True)
    looked = desk.command("gc", "--grace", "0s", "--json")
    assert (looked.code, looked.records[0]["what"], looked.records[-1]["unwanted"]) == (0, "unwanted", 1)
    assert looked.records[-1]["dry_run"] is True
    assert len(desk.blobs()) == 1
    assert desk.command("gc").code == 0  # too young for the grace
    acted = desk.command("gc", "--grace", "0s", "--delete", "--json")
    assert [one.get("what") for one in acted.records[:-1]] == ["moved"]
    assert desk.command("gc", "--grace", "0s", "--delete", "--json").records[0]["what"] == "removed"
    assert desk.blobs() == {}


def test_gc_is_refused_where_the_database_knows_nothing(desk: Desk, job: str) -> None:
    for table in ("manifest", "job_artifacts", "artifacts", "hash_index", "url_index"):
        desk.sql(f"DELETE FROM {table}")
    assert desk.command("gc", "--grace", "0s", "--delete").code == 0
    looked = desk.command("gc", "--unknown", "--grace", "0s")
    assert (looked.code, "would be refused" in looked.err) == (1, True)
    acted = desk.command("gc", "--unknown", "--grace", "0s", "--delete")
    assert (acted.code, "[store_doubtful]" in acted.err) == (2, True)
    assert len(desk.blobs()) == 1
    assert desk.command("gc", "--delete", "--dry-run").code == 2
    assert desk.command("gc", "--expect", "3").code == 2


@pytest.fixture
def attic(tmp_path: Path) -> Path:
    folder = tmp_path / "attic"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(b"%PDF-a")
    (folder / "b.pdf").write_bytes(b"%PDF-b")
    return folder


def test_a_backfill_from_csv(desk: Desk, attic: Path, tmp_path: Path) -> None:
    file = tmp_path / "old.csv"
    file.write_text(
        "link,file,sha256\n"
        f"https://example.org/a.pdf,a.pdf,{sha256(b'%PDF-a')}\n"
        f"https://example.org/gone.pdf?token=hunter2,gone.pdf,\n"
        f"https://example.org/b.pdf,{attic}/b.pdf,\n"
    )
    words = ["backfill", str(file), "--root", str(attic), "--map", "url=link", "--map", "path=file"]
    assert desk.command(*words, "--dry-run").out == "3 fit to be taken in\n"
    ran = desk.command(*words, "--json")
    assert ran.code == 1
    by_line = {one["number"]: one for one in ran.records}
    assert [by_line[n]["outcome"] for n in (2, 3, 4)] == ["done", "refused", "done"]
    assert by_line[3]["code"] == "path_missing"
    assert "hunter2" not in ran.out + ran.err
    again = desk.command(*words)
    assert (again.code, again.out) == (1, "2 done before, 1 refused\n")
    assert "refused: line 3: no file is there [path_missing]" in again.err


def test_a_backfill_reads_what_a_plan_reads(desk: Desk, attic: Path, tmp_path: Path) -> None:
    a, b = "https://example.org/a.pdf", "https://example.org/b.pdf"
    packed = tmp_path / "old.gz"
    packed.write_bytes(gzip.compress(f'Link;File;n\n{a};a.pdf;1\n{b};"b.pdf;2\n'.encode()))
    words = ["backfill", str(packed), "--root", str(attic), "--map", "url=link", "--map", "path=file"]
    ran = desk.command(*words)
    assert (ran.code, ran.out) == (1, "1 taken in, 1 refused\n")
    assert "refused: line 3: the line cannot be read: a quotation mark is opened and not closed" in ran.err
    assert desk.command(*words, "--delimiter", "pipe").code == 2
    objects = tmp_path / "old.jsonl"
    objects.write_text(json.dumps({"url": b, "file": "b.pdf", "n": 2}) + "\n[]\n\n" + json.dumps({"url": a}) + "\n")
    ran = desk.command("backfill", str(objects), "--root", str(attic), "--map", "path=file", "--json")
    told = {one["number"]: one for one in ran.records}
    assert (ran.code, sorted(told), told[1]["outcome"]) == (1, [1, 2, 4], "done")
    assert (told[2]["code"], told[4]["code"]) == ("line_malformed", "row_incomplete")


def test_a_backfill_from_a_database(desk: Desk, attic: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with sqlite3.connect(old) as connection:
        connection.execute("CREATE TABLE downloads (id INTEGER PRIMARY KEY, url TEXT, work_id TEXT, path TEXT, n INT)")
        connection.execute("INSERT INTO downloads VALUES (1, 'https://example.org/a.pdf', 'w', 'a.pdf', 3)")
    connection.close()
    before = old.read_bytes()
    words = ["backfill", "--from-database", f"sqlite:///{old}", "--root", str(attic)]
    ran = desk.command(*words, "--json")
    assert (ran.code, ran.record["outcome"]) == (0, "done")
    assert desk.view(ran.record["job_id"]).work_id == "w"
    assert old.read_bytes() == before
    for wrong, code in (
        (["--table", "nothing"], "table_missing"),
        (["--map", "url=nothing"], "columns_missing"),
        (["--from-database", "x"], "database_url_invalid"),
        (["--from-database", f"sqlite:///{tmp_path}/no.db"], "database_unreadable"),
    ):
        refused = desk.command(*words, *wrong)
        assert (refused.code, f"[{code}]" in refused.err) == (2, True), refused.err
    assert not (tmp_path / "no.db").exists()


def test_a_backfill_that_cannot_be_meant_is_refused(desk: Desk, attic: Path, tmp_path: Path) -> None:
    file = tmp_path / "old.csv"
    file.write_text("address,path\n")
    for words in ([], [str(file), "--from-database", "sqlite://"], [str(file), "--map", "x"],
                  [str(file), "--map", "a=b"], [str(file), "--root", "/nowhere"], [str(file)],
                  [str(file), "--map", "link=url"], [str(file), "--delimiter", "dot"], ["no.csv"]):  # fmt: skip
        assert desk.command("backfill", *words).code == 2, words
    assert desk.sql("SELECT job_id FROM jobs") == []


def test_superseded_results_are_given_up_without_a_purge(desk: Desk, job: str) -> None:
    ran = desk.command("purge", "--older-than", "0s", "--superseded", "--json")
    assert (ran.code, ran.record) == (0, {"given_up": 0})
    assert "0 replaced results given up" in desk.command("purge", "--older-than", "0s", "--superseded").out
    assert desk.command("purge", "--older-than", "0s", "--superseded", "--artifacts").code == 2
    assert desk.view(job).job_id == job
