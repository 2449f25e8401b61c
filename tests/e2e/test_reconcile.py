"""`dlpipe reconcile`, as an operator runs it (HEAL-3, HEAL-6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.webserver import WebServer

pytestmark = pytest.mark.e2e


def test_a_file_that_was_removed_is_reported_then_marked_and_fetched_again(command: Command, web: WebServer) -> None:
    url = web.put("/paper.pdf", b"%PDF-1.4 " + b"x" * 5_000)
    record = command.run("fetch", url, "--json").record
    path = Path(record["path"])
    path.unlink()

    for _ in range(2):  # a dry run changes nothing, so a second one says the same
        told = command.run("reconcile", "--dry-run", "--json")
        assert told.code == 0, told.err
        assert (told.record["files_missing"], told.record["jobs_reopened"], told.record["dry_run"]) == (1, 1, True)
        (finding,) = [one for one in told.record["findings"] if one["kind"] == "files_missing"]
        assert finding == {
            "kind": "files_missing",
            "what": record["artifact_uuid"],
            "did": "would be: a new run is due",
        }

    did = command.run("reconcile")
    assert did.code == 0, did.err
    assert "files_missing" in did.out

    again = command.run("fetch", url, "--json")
    assert again.code == 0, again.err
    assert path.read_bytes() == b"%PDF-1.4 " + b"x" * 5_000
    settled = command.run("reconcile", "--json").record
    assert (settled["files_missing"], settled["jobs_reopened"]) == (0, 0)
