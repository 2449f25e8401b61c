"""Every public call with a foreign tenant: answered as for what does not exist, and nothing changes (JOB-5).

On both engines, from Python and from the command line. A call that is not listed here fails the test, so that a new one
cannot be forgotten.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import dlpipe
from dlpipe import cli, client
from dlpipe.core.errors import UnknownId
from dlpipe.core.ports import Owned
from dlpipe.db import SqlDatabase
from tests.checker import assert_clean
from tests.torrent_world import TorrentWorld
from tests.world import World

UNKNOWN = "00000000-0000-5000-8000-000000000000"
URL = "http://files.example/a.bin"

JOB_CALLS = (
    "get_job get_purged_job explain_job cancel_job pause_job resume_job retry_job refresh_job replay_job"
).split()
MANY_CALLS = [name for name in client.__all__ if name.endswith("_jobs") and name not in ("list_jobs", "count_jobs")]
ARTIFACT_CALLS = "get_artifact link_artifact open_artifact".split()
LISTS: dict[str, Callable[..., Any]] = {
    "list_jobs": lambda **scope: list(dlpipe.list_jobs(**scope)),
    "list_jobs after": lambda job, **scope: list(dlpipe.list_jobs(after=job, **scope)),
    "list_artifacts": lambda **scope: list(dlpipe.list_artifacts(**scope)),
    "list_artifacts of": lambda job, **scope: list(dlpipe.list_artifacts(job_id=job, **scope)),
    "list_ops of": dlpipe.list_ops,
    "count_jobs": lambda **scope: dlpipe.count_jobs("status", **scope),
    "export": lambda **scope: list(dlpipe.export(**scope)),
}
SCOPED_COMMANDS = {
    "one job": "show why ops cancel pause resume retry refresh replay".split(),
    "one artifact": ["open"],
    "lists": "jobs artifacts export".split(),
    "makes its own": "fetch plan backfill".split(),  # a tenant given here is whose job it becomes
    "tested with upkeep": ["purge"],
    "a download": ["torrents"],
    "tested with its question": ["top"],  # tests/contract/test_overview.py
}
FOREIGN = ({"tenant_id": "other"}, {"project_id": "other"})


@pytest.fixture
def world(database: SqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    from dlpipe import tasks, wiring

    made = World(database, tmp_path / "store")
    monkeypatch.setattr(tasks, "deps", lambda: made.deps)
    monkeypatch.setattr(wiring, "database", lambda: database)
    made.source.put(URL, b"bytes")
    made.fetch(URL)
    return made


def answer(call: Callable[..., Any], *args: Any, **scope: str) -> Any:
    try:
        return call(*args, **scope)
    except UnknownId as error:
        return type(error), error.code, error.message


def test_no_public_call_is_missing_here() -> None:
    scoped = {name for name in client.__all__ if "tenant_id" in inspect.signature(getattr(client, name)).parameters}
    calls = {name for name in scoped if inspect.isfunction(getattr(client, name))}
    assert len(MANY_CALLS) == 6
    assert calls == {*JOB_CALLS, *MANY_CALLS, *ARTIFACT_CALLS, *(name.split()[0] for name in LISTS)}
    with click.Context(cli.dlpipe) as context:
        commands = {name: cli.dlpipe.get_command(context, name) for name in cli.dlpipe.list_commands(context)}
    with_scope = {
        name
        for name, command in commands.items()
        if isinstance(command, click.Group) or (command and any(p.name == "tenant_id" for p in command.params))
    }
    assert with_scope <= {name for names in SCOPED_COMMANDS.values() for name in names}


def test_no_question_to_the_ledger_is_missing_in_its_contract() -> None:
    from tests.contract import test_jobs_owner, test_overview, test_purge, test_results

    suites = (test_jobs_owner, test_overview, test_purge, test_results)
    text = "".join(Path(str(suite.__file__)).read_text() for suite in suites)
    methods = {name for name, _ in inspect.getmembers(Owned, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in methods if f"owned(scope).{name}(" not in text} - {"counts", "tally"} == set()


@pytest.mark.parametrize("scope", FOREIGN)
@pytest.mark.parametrize("state", ["done", "waiting", "failed"])
def test_a_foreign_job_is_an_unknown_one_to_every_call(world: World, scope: dict[str, str], state: str) -> None:
    job = world.plan(URL) if state == "done" else world.plan(f"http://{state}.example/x")
    if state == "failed":
        world.drive()
    before = world.everything()
    for name in JOB_CALLS:
        call = getattr(dlpipe, name)
        assert answer(call, job, **scope) == answer(call, UNKNOWN, **scope) == answer(call, UNKNOWN), name
    for name, call in LISTS.items():
        args = [job] if " " in name else []
        assert answer(call, *args, **scope) == [], name
    for name in MANY_CALLS:
        assert getattr(dlpipe, name)(everything=True, **scope) == 0, name
        assert getattr(dlpipe, name)(host="files.example", dry_run=True, **scope) == 0, name
    assert world.everything() == before


@pytest.mark.parametrize("scope", FOREIGN)
def test_a_foreign_artifact_is_an_unknown_one_to_every_call(world: World, scope: dict[str, str]) -> None:
    (artifact,) = world.artifacts(world.plan(URL))
    for name in ARTIFACT_CALLS:
        call = getattr(dlpipe, name)
        assert answer(call, artifact.artifact_uuid, **scope) == answer(call, UNKNOWN, **scope) == answer(call, UNKNOWN)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(world: World, capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """The command on that world: how it ended, and what it said on both streams."""

    def run(*words: str) -> tuple[int, str, str]:
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        said = capsysbinary.readouterr()
        return int(ended.value.code or 0), said.out.decode(), said.err.decode()

    return run


@pytest.mark.parametrize("words", [("--tenant", "other"), ("--project", "other")])
def test_a_foreign_id_is_an_unknown_one_to_every_command(world: World, command: Command, words: tuple[str]) -> None:
    done, failed = world.plan(URL), world.fetch("http://files.example/gone")
    waiting = world.plan("http://waiting.example/x")
    (artifact,) = world.artifacts(done)
    before = world.everything()
    known = {"one job": [done, failed, waiting], "one artifact": [artifact.artifact_uuid]}
    for kind, ids in known.items():
        for name in SCOPED_COMMANDS[kind]:
            unknown = command(name, UNKNOWN, *words)
            assert unknown[0] == 1, name
            for one in ids:
                code, out, err = command(name, one, *words)
                assert (code, out, err.replace(one, UNKNOWN)) == unknown, name
    for name in ("jobs", "artifacts"):
        code, out, _ = command(name, "--json", *words)
        assert (code, out) == (0, ""), name
    assert command("export", *words)[:2] == (0, "")
    for name in ("cancel", "pause", "resume", "retry", "refresh", "replay"):
        assert command(name, "--all", *words)[1].startswith("0 jobs"), name
    assert command("artifacts", done, *words)[0] == 1
    assert world.everything() == before
    assert json.loads(command("show", done, "--json")[1])["job_id"] == done


@pytest.mark.parametrize("words", [("--tenant", "other"), ("--project", "other")])
def test_a_foreign_download_is_an_unknown_one(
    world: World, command: Command, words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlpipe import tasks

    downloads = TorrentWorld(world.database, tmp_path / "torrents")
    monkeypatch.setattr(tasks, "torrent_deps", lambda: downloads.deps)
    job = downloads.start().job_id
    before = world.everything()
    scope = {"tenant_id" if words[0] == "--tenant" else "project_id": words[1]}
    for name in JOB_CALLS:
        call = getattr(dlpipe, name)
        assert answer(call, job, **scope) == answer(call, UNKNOWN, **scope) == answer(call, UNKNOWN), name
    for names in (["show"], ["why"], ["cancel"], ["torrents", "show"], ["torrents", "cancel"]):
        unknown = command(*names, UNKNOWN, *words)
        code, out, err = command(*names, job, *words)
        assert (code, out, err.replace(job, UNKNOWN)) == unknown, names
        assert code == 1
    assert command("torrents", "list", "--json", *words)[1] == ""
    assert world.everything() == before
    for names in (["show"], ["why"], ["torrents", "show"], ["torrents", "cancel"]):
        assert command(*names, job)[0] == 0, names


def test_the_owner_is_answered_by_all_of_them(world: World) -> None:
    """So that the refusals above are about the scope."""
    job = world.plan(URL)
    (artifact,) = world.artifacts(job)
    for name in MANY_CALLS:
        meant = getattr(dlpipe, name)(host="files.example", dry_run=True)
        assert meant == (name in ("refresh_jobs", "replay_jobs")), name  # it is done
    for name in JOB_CALLS:
        assert (getattr(dlpipe, name)(job) is None) == (name == "get_purged_job"), name
    assert dlpipe.get_artifact(artifact.artifact_uuid) is not None
    with dlpipe.open_artifact(artifact.artifact_uuid) as stream:
        assert stream.read() == b"bytes"
    for name, call in LISTS.items():
        if name != "list_jobs after":
            assert len(call(*([job] if " " in name else []))) == (6 if name == "list_ops of" else 1), name


def test_what_leaves_holds_no_place_in_the_store(world: World) -> None:
    (artifact,) = world.artifacts(world.plan(URL))
    told = repr([dlpipe.get_artifact(artifact.artifact_uuid), *(call(*([world.plan(URL)] if " " in name else []))
                 for name, call in LISTS.items())])  # fmt: skip
    assert artifact.storage_pointer not in told
    assert str(world.root) not in told


@pytest.mark.parametrize("dedupe_scope", ["tenant", "project", "global"])
def test_nothing_tells_that_another_tenant_has_the_same_bytes(
    world: World, command: Command, dedupe_scope: str
) -> None:
    """Also where equal files of all tenants share their bytes (DEDUPE-2)."""
    world.policy(dedupe_scope=dedupe_scope)
    theirs, only_mine = b"of both", b"of one!"
    world.source.put("http://theirs.example/x", theirs)
    world.fetch("http://theirs.example/x", tenant_id="their")

    def told(body: bytes, name: str) -> list[Any]:
        """All that is said of a first file with these bytes and of a second one, less what names it."""
        said: list[Any] = []
        for nth in (1, 2):
            url = world.source.put(f"http://{name}.example/{nth}", body)
            job = world.fetch(url, tenant_id="mine", project_id=f"p{nth}")
            scope = {"tenant_id": "mine", "project_id": f"p{nth}"}
            (row,) = [one for one in dlpipe.export(**scope) if one.job_id == job]
            said += [row.dedupe_action, row.bytes_written, row.run, row.resume_decision]
            said += [(op.op_type, op.state, op.result_code) for op in dlpipe.list_ops(job, **scope)]
            (dedupe,) = [op.result for op in dlpipe.list_ops(job, **scope) if op.op_type == "DEDUPE"]
            said.append(dedupe)
            shown = json.loads(command("show", job, "--json", "--tenant", "mine", "--project", f"p{nth}")[1])
            said += [shown["status"], shown["dedupe_action"], shown["bytes_written"]]
        return said

    assert told(theirs, "both") == told(only_mine, "one")
    assert_clean(world.database.url.render_as_string(hide_password=False), world.root)
