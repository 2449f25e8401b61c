"""`dlpipe verify` as people call it."""

from __future__ import annotations

import os

import pytest

from tests.e2e.conftest import Command
from tests.webserver import WebServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_after_a_fetch_nothing_is_wrong_and_then_a_file_is_gone(command: Command, web: WebServer) -> None:
    fetched = command.run("fetch", web.put("/a.pdf", b"%PDF-1.7 hello"), "--json")
    assert fetched.code == 0, fetched.err
    clean = command.run("verify", "--strict")
    assert (clean.code, clean.out, clean.err) == (0, "", "nothing wrong\n")
    os.unlink(fetched.record["path"])
    broken = command.run("verify", "--json")
    assert broken.code == 1
    assert (broken.record["code"], broken.record["job_id"]) == ("file_missing", fetched.record["job_id"])
    said = command.run("verify", "--no-hash")
    assert said.code == 1
    assert said.out.startswith("file_missing default/default/")
    assert "the ledger says that the file is there, and it is not" in said.out


def test_without_a_ledger_it_says_so_and_makes_none(command: Command) -> None:
    ran = command.run("verify")
    assert (ran.code, ran.out) == (2, "")
    assert "[schema_missing]" in ran.err
    assert not command.home.exists()


def test_a_store_that_is_not_mounted_is_a_setting_that_is_wrong(command: Command, web: WebServer) -> None:
    assert command.run("fetch", web.put("/a", b"hello")).code == 0
    (command.home / "store").rename(command.home / "away")
    ran = command.run("verify")
    assert (ran.code, ran.out) == (2, "")
    assert "[store_missing]" in ran.err
