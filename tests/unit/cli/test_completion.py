"""What the TAB key offers, in a real bash; where there is nothing to read it says and makes nothing."""

from __future__ import annotations

import os
import shlex
import socket
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dlpipe.core.states import Status
from tests.servers import wait_until

ROOT = Path(__file__).resolve().parents[3]


class Shell:
    """Bash with the completion loaded; `dlpipe` on its PATH is this checkout."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "data"
        (folder / "bin").mkdir()
        program = folder / "bin" / "dlpipe"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dlpipe "$@"\n')
        program.chmod(0o755)
        base = {name: value for name, value in os.environ.items() if not name.startswith("DLPIPE_")}
        self.folder = folder
        self.env = base | {
            "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "DLPIPE_HOME": str(self.home)
        }  # fmt: skip

    def run(self, *words: str) -> str:
        done = subprocess.run(["dlpipe", *words], env=self.env, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def offers(self, line: str) -> list[str]:
        """What is offered at the end of the line, whose words are parted as bash parts them."""
        words = line.replace("=", " = ").split()
        words += [""] if line.endswith(" ") else []
        script = (
            'eval "$(dlpipe completion bash)"\n'
            f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
            '_dlpipe_completion dlpipe; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", script], env=self.env, cwd=self.folder, capture_output=True, text=True
        )
        # Outside of an interactive shell bash has no compopt; that is all it may say.
        said = [line for line in done.stderr.splitlines() if "compopt" not in line]
        assert said == []
        return done.stdout.split()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_commands_options_and_choices_are_offered(shell: Shell) -> None:
    assert shell.offers("dlpipe re") == ["resume", "retry", "refresh", "replay", "reconcile"]
    assert shell.offers("dlpipe torrents s") == ["show", "sync"]
    assert shell.offers("dlpipe jobs --st") == ["--status"]
    assert shell.offers("dlpipe jobs --status ") == [status.value for status in Status]
    assert shell.offers("dlpipe jobs --status=fa") == ["failed"]
    assert shell.offers("dlpipe plan --format js") == ["jsonl"]
    assert shell.offers("dlpipe completion ") == ["bash", "zsh", "fish"]
    assert not shell.home.exists()


def _offers(shell: Shell, line: str, wanted: list[str]) -> bool:
    return sorted(shell.offers(line)) == sorted(wanted)


@pytest.mark.slow
def test_jobs_codes_and_hosts_are_offered_from_the_ledger(shell: Shell) -> None:
    assert shell.offers("dlpipe show ") == []
    assert not shell.home.exists()  # to complete makes no ledger
    shell.run("plan", "https://one.example/1", "https://two.example/2")
    with sqlite3.connect(shell.home / "ledger.db") as ledger:
        ids = [row[0] for row in ledger.execute("SELECT job_id FROM artifact_jobs ORDER BY host")]
        ledger.execute("UPDATE jobs SET status = 'failed', error_code = 'http_404' WHERE job_id = ?", ids[:1])
        ledger.execute("UPDATE artifact_jobs SET state = 'FAILED', due_at = NULL WHERE job_id = ?", ids[:1])
    ledger.close()
    # On a busy machine a completion may give up, as it should; it is asked again.
    for line, wanted in (
        ("dlpipe show ", ids),
        (f"dlpipe why {ids[1][:8]}", ids[1:]),
        ("dlpipe retry ", ids[:1]),
        ("dlpipe cancel ", ids[1:]),
        ("dlpipe replay ", []),
        ("dlpipe jobs --code ", ["http_404"]),
        ("dlpipe retry --host two", ["two.example"]),
    ):
        wait_until(partial(_offers, shell, line, wanted), line, within_s=60)
    assert shell.offers("dlpipe show --tenant other ") == []


@pytest.mark.slow
def test_a_ledger_that_cannot_be_read_offers_nothing_and_is_left_as_it_is(shell: Shell) -> None:
    shell.home.mkdir()
    ledger = shell.home / "ledger.db"
    for content in (b"", b"no database", b"SQLite format 3\0"):
        ledger.write_bytes(content)
        assert shell.offers("dlpipe show ") == []
        assert ledger.read_bytes() == content
    ledger.unlink()
    sqlite3.connect(ledger).execute("CREATE TABLE alembic_version (version_num)").connection.close()
    before = ledger.read_bytes()
    assert shell.offers("dlpipe show ") == []  # of another version: neither read nor migrated
    assert ledger.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["silent", "refused", "unknown setting"])
def test_what_does_not_answer_or_is_wrongly_set_is_not_waited_for(wrong: str, shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if wrong == "silent" else 1
        if wrong == "unknown setting":
            shell.env["DLPIPE_BOGUS"] = "1"
        else:
            shell.env["DLPIPE_DATABASE_URL"] = f"postgresql+psycopg://u:p@127.0.0.1:{port}/x"
        assert shell.offers("dlpipe show ") == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(name: str, shell: Shell) -> None:
    script = shell.run("completion", name)
    assert f"_DLPIPE_COMPLETE={name}_complete" in script
    assert "dlpipe" in script
