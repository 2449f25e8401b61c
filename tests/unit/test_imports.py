"""Importing dlpipe costs nothing, and all that must agree about the stages does. OPS-1, STYLE "Imports"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import flow, results, states
from dlpipe.pipeline.stages import STAGES

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = "alembic celery flower httpcore httpx kombu pydantic redis rich sqlalchemy socket sqlite3 ssl threading".split()

WATCHED = """
import json, sys
sys.path.insert(0, sys.argv[1])
done = []
def watch(event, arguments):
    starts = ("socket.", "subprocess.", "sqlite3.", "os.mkdir", "os.remove", "os.rename", "os.fork", "os.exec",
              "_thread.start_new_thread", "os.putenv", "shutil.")
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o3
    if event.startswith(starts) or writes:
        done.append([event, repr(arguments)])
before = set(sys.modules)
sys.addaudithook(watch)
import dlpipe
new = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"done": done, "new": new, "version": dlpipe.__version__}))
"""


def python(code: str, *arguments: str, cwd: Path, **env: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_dlpipe_starts_nothing_and_opens_nothing(tmp_path: Path) -> None:
    said = python(WATCHED, str(REPOSITORY), cwd=tmp_path)
    assert said["done"] == []
    assert [name for name in said["new"] if name in HEAVY] == []
    assert list(tmp_path.iterdir()) == []


def test_the_names_are_found_when_they_are_first_used(tmp_path: Path) -> None:
    """Making the app reads settings and connects to nothing: there is no broker here."""
    code = (
        "import json, sys, threading; import dlpipe; early = 'celery' in sys.modules; plan = dlpipe.plan;"
        "print(json.dumps([early, plan.name, dlpipe.app.main, callable(dlpipe.plan_many),"
        " sorted(n for n in dlpipe.app.tasks if n.startswith('dlpipe.')), threading.active_count()]))"
    )
    early, plan, app, many, tasks, threads = python(code, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert (early, plan, app, many, threads) == (False, "dlpipe.plan", "dlpipe", True, 1)
    stages = {f"dlpipe.{row.name}" for row in flow.STAGES}
    torrents = {"dlpipe.enqueue_download", "dlpipe.register_download", "dlpipe.sync_torrents"}
    assert set(tasks) == stages | torrents | {"dlpipe.plan", "dlpipe.dispatch", "dlpipe.reconcile", "dlpipe.sweep"}
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_an_attribute_error() -> None:
    import dlpipe

    with pytest.raises(AttributeError, match="nonsense"):
        dlpipe.nonsense  # noqa: B018


def test_every_stage_has_its_row_result_class_task_and_states() -> None:
    from dlpipe import defaults, settings, tasks

    names = [row.name for row in flow.STAGES]
    assert list(STAGES) == names
    assert {row.op for row in flow.STAGES} == set(flow.OpType) == set(results.TYPES)
    routes = defaults.config(settings.load({}).settings)["task_routes"]
    for row in flow.STAGES:
        assert getattr(tasks, row.name).name == f"dlpipe.{row.name}"
        assert routes[f"dlpipe.{row.name}"] == {"queue": row.queue.value}
        assert states.claimable(row.name), f"no state from which {row.name} may claim"
        assert any(s.moment is states.Moment.FINISH for s in states.TABLE if s.stage == row.name)
        assert STAGES[row.name].__name__.lower() == row.name.replace("_", "")
    assert {step.stage for step in states.TABLE} == {"", *names}
