"""A bare Celery chain of six tasks with default settings: nothing is written down but that a chain has ended.

`celery -A ops.bench.peers.celery_chain worker` carries them out; `python -m ops.bench.peers.celery_chain` sends as many
as each line asks for, and waits for the last. BENCH_BROKER and BENCH_REDIS name one server, as Celery and redis-py do.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, chain

app = Celery("bare", broker=os.environ["BENCH_BROKER"])
done: Any = redis.Redis.from_url(os.environ["BENCH_REDIS"])
ENDED = "ended"
LONGEST_S = 600.0


def head(job: str) -> str:
    return job


def resume_decide(job: str) -> str:
    return job


def stream(job: str) -> str:
    return job


def finalize(job: str) -> str:
    return job


def index(job: str) -> str:
    return job


def dedupe(job: str) -> str:
    done.rpush(ENDED, job)
    return job


TASKS = [
    app.task(name=f"bare.{each.__name__}")(each) for each in (head, resume_decide, stream, finalize, index, dedupe)
]


def carry(message: dict[str, Any]) -> dict[str, Any]:
    jobs: list[str] = message["jobs"]
    before = int(done.llen(ENDED))
    began = time.monotonic()
    for job in jobs:
        chain(TASKS[0].s(job), *(task.s() for task in TASKS[1:])).apply_async()
    while int(done.llen(ENDED)) < before + len(jobs) and time.monotonic() - began < LONGEST_S:
        time.sleep(0.01)
    took = time.monotonic() - began
    ended = [each.decode() for each in done.lrange(ENDED, before, -1)]
    return {"seconds": took, "each_once": sorted(ended) == sorted(jobs)}


if __name__ == "__main__":
    from ops.bench.processes import answer_lines

    print("{}", flush=True)
    answer_lines(carry)
