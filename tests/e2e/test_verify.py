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


def test_an_empty_mount_point_is_told_from_a_store_whose_files_are_lost(command: Command, web: WebServer) -> None:
    url = web.put("/a", b"hello")
    assert command.run("fetch", url).code == 0
    store = command.home / "store"
    store.rename(command.home / "away")
    store.mkdir()
    ran = command.run("verify")
    assert (ran.code, ran.out) == (2, "")
    assert "[store_not_mounted]" in ran.err
    assert "--accept-store" in ran.err
    assert "store_not_mounted" in command.run("verify", "--repair").err
    assert "store_not_mounted" in command.run("reconcile", "--json").out
    again = command.run("fetch", url, "--json")
    assert (again.code, again.record["error_code"]) == (1, "store_not_mounted")
    assert list(store.iterdir()) == []
    # Somebody who knows says that the files are lost: then they are brought again.
    accepted = command.run("reconcile", "--accept-store", "--json")
    assert (accepted.code, accepted.record["files_missing"]) == (0, 1)
    assert command.run("fetch", url).code == 0
    assert command.run("verify", "--strict").code == 0


def test_how_old_is_young_is_what_the_settings_say(command: Command, web: WebServer) -> None:
    assert command.run("fetch", web.put("/a", b"hello")).code == 0
    stray = command.home / "store" / "default" / "default" / "ba"
    stray.mkdir()
    (stray / "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").write_bytes(b"abc")
    (stray / "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").chmod(0o444)
    part = command.home / "store" / ".staging" / "default" / "0123456789abcdef.part"
    part.write_bytes(b"x")
    assert command.run("verify").code == 0
    told = command.run("verify", "--json", DLPIPE_HEAL_FILE_GRACE_S="0")
    assert (told.code, [one["code"] for one in told.records]) == (1, ["file_unknown"])
    told = command.run("verify", "--json", DLPIPE_HEAL_PART_AGE_S="0")
    assert (told.code, [one["code"] for one in told.records]) == (1, ["stray_part"])
