"""No sequence of calls changes or removes an artifact record, or lets it answer to another tenant (JOB-3, JOB-5).

At random, on both engines: planning, working in full or in part, all wishes, refreshes of what has changed, replays,
files that are lost or damaged, reconcile, repair, backfills, purges that give files up and garbage collection.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import event

import dlpipe
from dlpipe import cli, tasks, wiring
from dlpipe.core.errors import DlpipeError
from dlpipe.core.flow import REPLAYABLE
from dlpipe.core.states import Status
from dlpipe.db import SqlDatabase
from dlpipe.db.schema import metadata
from dlpipe.pipeline import reconcile, repair, runner
from dlpipe.store.archive import FileArchive
from dlpipe.store.trash import LocalTrash
from tests.world import World, sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.own_engines("files in a folder are lost and damaged by hand", "store"),
    pytest.mark.no_engines("broker"),
]

URLS = [f"https://{host}.example/{name}.pdf" for host in "ab" for name in "xy"]
BODIES = [b"%PDF-one", b"%PDF-two" * 9_000, b"%PDF-three"]
SCOPES = [{"tenant_id": "default", "project_id": "default"}, {"tenant_id": "default", "project_id": "other"}]
FOREIGN = ({"tenant_id": "stranger", "project_id": "default"}, {"tenant_id": "default", "project_id": "strange"})
WISHES: dict[str, Callable[..., Any]] = {
    "cancel": dlpipe.cancel_job,
    "pause": dlpipe.pause_job,
    "resume": dlpipe.resume_job,
    "retry": dlpipe.retry_job,
    "refresh": dlpipe.refresh_job,
    "replay": dlpipe.replay_job,
}
ALL = "SELECT * FROM artifacts ORDER BY artifact_uuid"

urls, bodies, scopes = st.sampled_from(URLS), st.sampled_from(BODIES), st.sampled_from(SCOPES)
which = st.integers(0, 9)


class Here:
    """What all machines of a test share: one database, a folder for each machine, and the world of the present one."""

    def __init__(self, database: SqlDatabase, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.numbers = count()
        self.counts: Counter[str] = Counter()
        self.world = self.another()

    def another(self) -> World:
        with self.database.engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
        self.directory = self.folder / str(next(self.numbers))
        self.attic = self.directory / "attic"
        self.attic.mkdir(parents=True)
        self.world = World(self.database, self.directory / "store")
        heal = replace(self.world.deps.policy.heal, max_missing=10_000)
        self.world.policy(heal=heal)
        return self.world


class Machine(RuleBasedStateMachine):
    here: ClassVar[Here]

    @initialize(whole_life=st.booleans())
    def begin(self, whole_life: bool) -> None:
        self.world, self.counts = self.here.another(), self.here.counts
        self.jobs: list[tuple[str, dict[str, str]]] = []
        self.before: dict[str, tuple[Any, ...]] = {}
        self.told: dict[str, dlpipe.Artifact] = {}
        self.now(URLS[0], BODIES[0])
        self.plan(URLS[0], SCOPES[0], "w", False, works=True)
        if whole_life:
            self._whole_life()

    def _whole_life(self) -> None:
        """What comes together too seldom by chance: all that can befall a result, one after the other."""
        life: tuple[Callable[[], None], ...] = (
            lambda: self.lose(0, damage=False, then="repair"),
            self.work,
            lambda: self.wish(0, "replay", None, "stream", works=True),
            lambda: self.now(URLS[0], BODIES[1]),
            lambda: self.wish(0, "refresh", None, "stream", works=True),
            lambda: self.purge(SCOPES[0], "--superseded", collects=True),
            lambda: self.backfill(URLS[1], BODIES[0], SCOPES[0], "copy"),
            lambda: self.purge(SCOPES[0], "--artifacts", collects=True),
            lambda: self.plan(URLS[0], SCOPES[0], "w", False, works=True),
        )
        for step in life:
            step()
            self.no_record_has_changed()

    def _command(self, *words: str) -> int:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        return int(ended.value.code or 0)

    def _files(self) -> list[Path]:
        """What lies in its place in the store."""
        return sorted(self.world.root.glob("default/*/*/*"))

    # ── the world ─────────────────────────────────────────────────────────────────────────────────

    @rule(url=urls, body=bodies)
    def now(self, url: str, body: bytes) -> None:
        """What the server has there from now on."""
        self.world.source.put(url, body, etag=f'"{sha256(body)[:8]}"', content_type="application/pdf")

    @rule(url=urls)
    def gone(self, url: str) -> None:
        self.world.source.pages.pop(url, None)

    @rule(number=which, damage=st.booleans(), then=st.sampled_from(["", "reconcile", "repair"]))
    def lose(self, number: int, damage: bool, then: str) -> None:
        if files := self._files():
            file = files[number % len(files)]
            file.unlink()
            if damage:
                file.write_bytes(b"other bytes")
                file.chmod(0o444)
            self.counts["lost"] += 1
        if then:
            self.heal(then)

    # ── work ──────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def work(self) -> None:
        self.world.drive()

    @rule(stages=st.integers(0, 6), again=st.booleans())
    def work_in_part(self, stages: int, again: bool) -> None:
        """A worker that dies after some of the stages; and a message that comes twice."""
        reconcile.reconcile(self.world.deps)
        if self.world.publisher.queue:
            hint = self.world.publisher.queue.pop(0)
            for row in hint.stages[:stages] * (2 if again else 1):
                runner.run(self.world.deps, row.name, hint.job_id, hint.run)

    @rule(number=which)
    def time(self, number: int) -> None:
        if self.jobs:
            job, _ = self.jobs[number % len(self.jobs)]
            self.world.make_due(job)
            self.world.age(job)

    # ── the public calls ──────────────────────────────────────────────────────────────────────────

    @rule(url=urls, scope=scopes, work=st.sampled_from("wv"), refresh=st.booleans(), works=st.booleans())
    def plan(self, url: str, scope: dict[str, str], work: str, refresh: bool, works: bool) -> None:
        answer = dlpipe.plan(url=url, work_id=work, refresh=refresh, **scope)
        if (answer["job_id"], scope) not in self.jobs:
            self.jobs.append((answer["job_id"], scope))
        if works:
            self.work()

    @rule(number=which, wish=st.sampled_from(list(WISHES)), scope=st.sampled_from([None, None, None, *FOREIGN]),
          stage=st.sampled_from(REPLAYABLE), works=st.booleans())  # fmt: skip
    def wish(self, number: int, wish: str, scope: dict[str, str] | None, stage: str, works: bool) -> None:
        if self.jobs:
            job, own = self.jobs[number % len(self.jobs)]
            more = {"from_stage": stage} if wish == "replay" else {}
            answer = WISHES[wish](job, **(scope or own), **more)
            assert scope is None or answer is None
            self.counts[wish] += answer is not None and answer.status is Status.PENDING
        if works:
            self.work()

    @rule(wish=st.sampled_from(["refresh", "replay", "retry"]), scope=scopes)
    def wish_for_all(self, wish: str, scope: dict[str, str]) -> None:
        assert self._command(wish, "--all", "--project", scope["project_id"]) in (0, 1)

    @rule(scope=scopes, kind=st.sampled_from(["", "--artifacts", "--superseded"]), collects=st.booleans())
    def purge(self, scope: dict[str, str], kind: str, collects: bool) -> None:
        words = ["purge", "--older-than", "0s", "--project", scope["project_id"], *kind.split()]
        assert self._command(*words) == 0
        if collects:
            self.collect()

    @rule()
    def collect(self) -> None:
        files = len(self._files())
        assert self._command("gc", "--grace", "0s", "--delete") == 0
        self.counts["collected"] += files - len(self._files())

    @rule(url=urls, body=bodies, scope=scopes, sharing=st.sampled_from(["clone", "link", "copy"]))
    def backfill(self, url: str, body: bytes, scope: dict[str, str], sharing: str) -> None:
        name = f"{next(self.here.numbers)}"
        (self.here.attic / name).write_bytes(body)
        table = self.here.directory / "old.csv"
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([("url", "path", "work_id"), (url, name, "v")])
        words = ["backfill", str(table), "--root", str(self.here.attic), "--sharing", sharing]
        ended = self._command(*words, "--project", scope["project_id"])
        self.counts["backfilled"] += ended == 0

    @rule(kind=st.sampled_from(["reconcile", "repair"]))
    def heal(self, kind: str) -> None:
        if kind == "reconcile":
            reconcile.reconcile(self.world.deps)
            return
        accused = [repair.Accused(str(row.created_by_job_id), row.storage_pointer) for row in self.world.sql(ALL)]
        repaired = repair.bring_again(self.world.deps, accused, len(accused))
        self.counts["repaired"] += repaired.jobs_reopened

    # ── what holds after each ─────────────────────────────────────────────────────────────────────

    @invariant()
    def no_record_has_changed(self) -> None:
        rows = {str(row.artifact_uuid): tuple(row) for row in self.world.sql(ALL)}
        assert {uuid: rows.get(uuid) for uuid in self.before} == self.before
        for uuid in rows.keys() - self.before.keys():
            row = next(row for row in self.world.sql(ALL) if str(row.artifact_uuid) == uuid)
            record = dlpipe.get_artifact(uuid, tenant_id=row.tenant_id, project_id=row.project_id)
            assert record is not None
            self.told[uuid] = record
            self.counts["records"] += 1
        self.before = rows
        self.counts["steps"] += 1

    @invariant()
    def every_record_answers_its_owner_as_at_first_and_nobody_else(self) -> None:
        for uuid, first in self.told.items():
            own = {"tenant_id": first.tenant_id, "project_id": first.project_id}
            assert dlpipe.get_artifact(uuid, **own) == first
            for scope in (*FOREIGN, next(other for other in SCOPES if other != own)):
                assert dlpipe.get_artifact(uuid, **scope) is None

    def teardown(self) -> None:
        """How its bytes are in the end: so that each end is known to be met."""
        self.counts["second results"] += len(self.told) - len({one.job_id for one in self.told.values()})
        for uuid, first in self.told.items():
            try:
                with dlpipe.open_artifact(uuid, tenant_id=first.tenant_id, project_id=first.project_id) as stream:
                    self.counts["right" if sha256(stream.read()) == first.sha256 else "damaged"] += 1
            except DlpipeError as error:
                self.counts[error.code] += 1


def test_no_sequence_of_calls_changes_an_artifact_record(
    database: SqlDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite = database.engine.dialect.name == "sqlite"
    if sqlite:  # no power is cut here, and the disk would take most of the time
        event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF").close())
        database.engine.dispose()
    here = Here(database, tmp_path)
    monkeypatch.setattr(tasks, "deps", lambda: here.world.deps)
    monkeypatch.setattr(wiring, "database", lambda: database)
    monkeypatch.setattr(wiring, "archive", lambda *_: FileArchive(here.directory / "archive", "jsonl"))
    monkeypatch.setattr(wiring, "trash", lambda: LocalTrash(here.world.root))
    run_state_machine_as_test(
        type("Present", (Machine,), {"here": here}),
        settings=settings(
            max_examples=60 if sqlite else 25, stateful_step_count=40, deadline=None, print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    print(", ".join(f"{number} {name}" for name, number in sorted(here.counts.items())))
    assert here.counts["steps"] >= 500
    for name in ("second results", "refresh", "replay", "collected",
                 "backfilled", "repaired", "lost", "right", "artifact_retired"):  # fmt: skip
        assert here.counts[name] > 0, name
