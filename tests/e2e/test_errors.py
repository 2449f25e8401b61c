"""Whatever is wrong around a command, it says what happened, its code, and what to do; never a traceback (OPS-5)."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from pathlib import Path

import click
import pytest

from ops import docs_commands
from tests.e2e.conftest import REPOSITORY
from tests.e2e.walk import walker
from tests.unit.test_docs import listed_codes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

UNKNOWN = "00000000-0000-5000-8000-000000000000"
URL = "https://files.example/a.bin"
WORDS = {
    "fetch": [URL, "--timeout", "1"],
    "plan": [URL],
    "torrents add": [f"magnet:?xt=urn:btih:{'a' * 40}", "--user", "u", "--book", "b", "--media", "m"],
    "completion": ["bash"],
    "purge": ["--older-than", "1d"],
    "backfill": ["/dev/null"],
}
"""What a command is called with; any other one with an id that is unknown, where it takes one."""
ENDLESS = {"up"}
"""Commands that run until they are told to end; and `fetch`, which would start a whole stack."""
_ERROR = re.compile(r"^error: \S.* \[([a-z0-9_]+)\]$\n  \S", re.MULTILINE)
_TOLD = re.compile(r"\[([a-z0-9_]+)\]")


def words_for(name: str, command: click.Command) -> list[str]:
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    takes_id = [one for one in arguments if one.required or "JOB" in (one.metavar or "")]
    return [*name.split(), *WORDS.get(name, [UNKNOWN for _ in takes_id])]


def situations(folder: Path) -> dict[str, dict[str, str]]:
    """Each with a data directory of its own, in which nothing can be left over."""
    ledger = folder / "made" / "ledger.db"
    base = {"DLPIPE_ALLOW_PRIVATE": "1"}
    made = {
        name: folder / name.replace(" ", "-") for name in ("newer", "older", "damaged", "no redis", "no ledger yet")
    }
    ran = _walk([(["plan", "https://files.example/first"], {"DLPIPE_HOME": str(ledger.parent)})])
    assert ran[0][0] == 0, ran
    for name, home in made.items():
        if name != "no ledger yet":
            home.mkdir()
            for file in ledger.parent.glob("ledger.db*"):  # what is written last is still beside it
                shutil.copy(file, home)
    for name, version in (("newer", "9999"), ("older", "0001")):
        with sqlite3.connect(made[name] / "ledger.db") as database:
            database.execute("UPDATE alembic_version SET version_num = ?", [version])
        database.close()
    for file in made["damaged"].glob("ledger.db-*"):
        file.unlink()
    (made["damaged"] / "ledger.db").write_bytes(b"this is no database" * 1000)
    (folder / "a-file").write_text("")
    dead_redis = {"DLPIPE_REDIS_URL": "redis://:hunter2@127.0.0.1:1/0", "DLPIPE_BROKER_URL": "redis://127.0.0.1:1/0"}
    return {
        **{name: base | {"DLPIPE_HOME": str(home)} for name, home in made.items()},
        "no redis": base | dead_redis | {"DLPIPE_HOME": str(made["no redis"])},
        "no database": base | {"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:hunter2@127.0.0.1:1/x",
                               "DLPIPE_HOME": str(folder / "empty")},
        "home is a file": base | {"DLPIPE_HOME": str(folder / "a-file")},
        "home is forbidden": base | {"DLPIPE_HOME": "/proc/dlpipe"},
        "setting unknown": base | {"DLPIPE_BOGUS": "hunter2"},
        "setting invalid": base | {"DLPIPE_LEASE_TTL_S": "soon"},
        "settings contradict": base | {"DLPIPE_LEASE_RENEW_S": "100"},
    }  # fmt: skip


def _walk(rows: list[tuple[list[str], dict[str, str]]]) -> list[tuple[int, str, str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DLPIPE_")}
    return [walker().run(words, clean | env, REPOSITORY) for words, env in rows]


def test_whatever_is_wrong_around_a_command_is_told_with_its_code_and_what_to_do(tmp_path: Path) -> None:
    leaves = {name: words_for(name, command) for name, command, _ in docs_commands.leaves()}
    around = situations(tmp_path)
    pairs = [
        (name, situation)
        for situation in around
        for name in leaves
        if not (name in ENDLESS | {"fetch"} and situation in ("no ledger yet", "no redis"))
    ]
    found = _walk([(leaves[name], around[situation]) for name, situation in pairs])
    wrong = [
        f"{name} / {situation}: {fault}"
        for (name, situation), (code, out, err) in zip(pairs, found, strict=True)
        for fault in faults(code, out, err)
    ]
    assert wrong == []


def faults(code: int, out: str, err: str) -> list[str]:
    found = []
    if "Traceback" in err or "hunter2" in out + err or code not in (0, 1, 2):
        found.append(f"ends with {code}: {out[-300:]} {err[-900:]}")
    elif code and not _ERROR.search(err) and not (set(_TOLD.findall(out + err)) & listed_codes()):
        found.append(f"ends with {code} and tells no code: {out[-300:]} {err[-300:]}")
    found += [f"{told} is in no list of codes" for told in set(_ERROR.findall(err)) - listed_codes()]
    return found


def test_wrong_use_is_told_with_its_code_and_what_to_do(tmp_path: Path) -> None:
    rows = [[*name.split(), "--no-such-option"] for name, _, _ in docs_commands.leaves()]
    rows += [
        ["nothing"],
        ["jobs", "--status", "lost"],
        ["jobs", "--limit", "many"],
        ["plan"],
        ["plan", "-i", "/no/such/file"],
        ["plan", "ftp://files.example/x"],
        ["plan", "not a url"],
        ["plan", "http://u:hunter2@files.example/"],
        ["plan", "http://127.0.0.1/"],
        ["plan", URL, "--sha256", "5"],
        ["plan", URL, "--not-before", "soon"],
        ["plan", URL, "--tenant", ""],
        ["fetch", "ftp://files.example/x"],
        ["cancel"],
        ["retry", UNKNOWN, "--all"],
        ["show", "no id at all"],
        ["show", "\x1b[31m\udc80"],
        ["open", UNKNOWN, "+"],
        ["export", "-o", "/no/such/folder/x"],
        ["torrents", "nothing"],
        ["torrents", "show", "no id at all"],
    ]
    env = {"DLPIPE_HOME": str(tmp_path / "data")}
    for words, (code, out, err) in zip(rows, _walk([(row, env) for row in rows]), strict=True):
        assert faults(code, out, err) == [], words
        assert code in (1, 2), words
        assert "\x1b" not in err, words
