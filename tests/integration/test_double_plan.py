"""Two processes plan the same thousand jobs at the same moment: one row and one id each, created once (PLAN-3)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from dlpipe.db import SqlDatabase
from dlpipe.db.schema import artifact_jobs, jobs
from tests.ledgers import looking, spec

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines("broker", "store"),
]

JOBS = 1_000
PLANNERS = 2
ROUND = 50  # jobs that all planners plan from one starting shot on

PLAN = f"""
import random, sys
from dlpipe.db import SqlDatabase
from tests.ledgers import spec

database = SqlDatabase(sys.argv[1])
specs = [spec(str(number)) for number in range({JOBS})]
database.check_schema()
for begin in range(0, len(specs), {ROUND}):
    batch = specs[begin : begin + {ROUND}]
    random.shuffle(batch)  # planners must not come to wait for each other in a circle
    for first in range(0, len(batch), 10):
        print("ready", flush=True)
        sys.stdin.readline()
        with database.write() as unit:
            answers = unit.jobs.plan_if_absent(batch[first : first + 10])
        for answer in answers:
            print(answer.outcome, answer.job_id)
database.close()
"""


def test_of_two_who_plan_the_same_at_once_each_job_is_created_by_one(database: SqlDatabase, database_url: str) -> None:
    planners = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PLAN, database_url],
            cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(PLANNERS)
    ]  # fmt: skip
    told: list[list[str]] = [[] for _ in planners]
    for _ in range(0, JOBS, 10):
        for planner, lines in zip(planners, told, strict=True):
            assert planner.stdout is not None
            while (line := planner.stdout.readline()) not in ("ready\n", ""):
                lines.append(line)
        for planner in planners:  # all are waiting for this
            assert planner.stdin is not None
            planner.stdin.write("\n")
            planner.stdin.flush()
    for planner, lines in zip(planners, told, strict=True):
        lines.extend(planner.communicate(timeout=100)[0].splitlines())

    assert [planner.returncode for planner in planners] == [0] * PLANNERS
    expected = {spec(str(number)).job_id for number in range(JOBS)}
    answers = [tuple(line.split()) for lines in told for line in lines]
    assert len(answers) == PLANNERS * JOBS
    assert Counter(outcome for outcome, _ in answers) == {"created": JOBS, "known": (PLANNERS - 1) * JOBS}
    assert Counter(job_id for outcome, job_id in answers if outcome == "created") == Counter(expected)
    for lines in told:
        assert {line.split()[1] for line in lines} == expected
    with looking(database) as connection:
        for table in (jobs, artifact_jobs):
            assert set(connection.scalars(sa.select(table.c.job_id))) == expected
            assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == JOBS
    shares = [sum(line.startswith("created") for line in lines) for lines in told]
    print(f"created by each: {shares}")
    assert all(shares)  # they really met
