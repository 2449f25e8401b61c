"""celeryconfig.py as a deployment changes it, by the examples in the file: in a checkout and with a wheel. OPS-3."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

import celeryconfig
from tests.fleet import REPOSITORY, Fleet
from tests.webserver import WebServer
from tests.wheel import installed

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TASKS = """
import os
from dlpipe import app

@app.task(name="my_company.nightly", bind=True)
def nightly(self):
    with open(os.environ["SEEN"], "a") as file:
        file.write(self.request.delivery_info["routing_key"] + "\\n")
"""
SHOW = """
import json
from dlpipe import app
names = "worker_concurrency worker_max_tasks_per_child worker_send_task_events broker_pool_limit task_acks_late"
route = app.amqp.router.route({}, "my_company.nightly")["queue"].name
stage = app.amqp.router.route({}, "dlpipe.finalize")["queue"]
from dlpipe.defaults import short_name as known  # the name of -Q, whatever the broker calls it
print(json.dumps({**{name: app.conf[name] for name in names.split()}, "ours": route, "finalize": known(stage),
    "schedule": sorted(app.conf.beat_schedule), "queues": sorted(set(map(known, app.conf.task_queues)))}))
"""


def examples() -> str:
    """All that the file gives as an example, as one configuration; only that a day is too long to wait for."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", celeryconfig.__doc__ or "", re.MULTILINE)
    assert len(blocks) == 2
    text = "\n".join(textwrap.dedent(block) for block in blocks)
    assert text.count("86_400.0") == 1
    return text.replace("86_400.0", "0.5")


def deploy(where: str, fleet: Fleet, folder: Path, text: str) -> None:
    """Put the configuration where the documents say that it is found."""
    company = folder / "company" / "my_company"
    company.mkdir(parents=True)
    (company / "__init__.py").touch()
    (company / "tasks.py").write_text(TASKS)
    path = [company.parent]
    fleet.cwd = folder / "here"
    if where == "checkout":
        shutil.copytree(REPOSITORY / "dlpipe", fleet.cwd / "dlpipe", ignore=shutil.ignore_patterns("__pycache__"))
        (fleet.cwd / "celeryconfig.py").write_text(text)
    else:
        fleet.cwd.mkdir()
        (folder / "etc").mkdir()
        path += [installed(folder), folder / "etc"]
        name = "celeryconfig" if where == "wheel" else "of_the_company"
        (folder / "etc" / f"{name}.py").write_text(text)
        if where == "wheel, by another name":
            fleet.env["CELERY_CONFIG_MODULE"] = name
    fleet.env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    fleet.env["SEEN"] = str(folder / "seen")


@pytest.mark.parametrize("where", ["checkout", "wheel", "wheel, by another name"])
def test_what_a_deployment_changes_is_what_runs(where: str, fleet: Fleet, web: WebServer, tmp_path: Path) -> None:
    """Concurrency, queues, routes and schedule, in the worker, the scheduler, and in who plans."""
    deploy(where, fleet, tmp_path, examples())
    told: dict[str, Any] = json.loads(fleet.python(SHOW))
    assert told == {
        "worker_concurrency": 16, "worker_max_tasks_per_child": 1_000, "worker_send_task_events": True,
        "broker_pool_limit": 20, "task_acks_late": True, "ours": "ours", "finalize": "disk",
        "schedule": ["dispatch", "ours", "reconcile"], "queues": ["beat", "disk", "net", "ours", "plan"],
    }  # fmt: skip
    url = web.put("/file", body := b"worth fetching" * 100)
    worker = fleet.celery("w1", "worker", "-P", "threads", "-n", "w1@test", "-l", "INFO")
    fleet.beat()
    fleet.until(lambda: worker.says("ready."), "the worker to be ready", worker)
    assert worker.says("concurrency: 16 (thread")
    assert worker.says(".> ours ")
    fleet.plan([url])
    fleet.until(lambda: fleet.done() == 1, "the job to end", worker)
    fleet.assert_each_once({url: body})
    seen = Path(fleet.env["SEEN"])
    fleet.until(lambda: seen.exists() and seen.read_text().split()[:2] == ["ours", "ours"], "the own task", worker)


def test_as_shipped_it_changes_nothing(fleet: Fleet) -> None:
    with_it = fleet.python("from dlpipe import app; print(sorted((k, repr(v)) for k, v in app.conf.items()))")
    fleet.env["CELERY_CONFIG_MODULE"] = "json"  # a module with nothing in it that Celery knows
    assert fleet.python("from dlpipe import app; print(sorted((k, repr(v)) for k, v in app.conf.items()))") == with_it


def test_one_that_is_named_and_missing_is_an_error(fleet: Fleet) -> None:
    worker = fleet.celery("w1", "worker", "-P", "threads", CELERY_CONFIG_MODULE="not_there")
    fleet.until(lambda: not worker.lives, "it to end")
    assert worker.says("celeryconfig_missing")
