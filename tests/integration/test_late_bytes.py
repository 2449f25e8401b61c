"""Bytes that a server sends late are no other file's content (HTTP.md rows 49, 50): real sockets, whole pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dlpipe.core.model import Scope
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.pipeline import dispatch
from tests.certificates import NAME, Authority
from tests.late_bytes import Url, fill
from tests.origin import Origin
from tests.pipeline import NET, Pipeline
from tests.shelf import Shelf
from tests.world import carry_out, sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines("broker"),
]

TENANTS = ("anna", "bert", "cleo")
WORKERS = 6
"""So many jobs at once: several connections, and each is used again at once."""


@pytest.fixture
def pipeline(ledger_url: str, shelf: Shelf, tmp_path: Path) -> Iterator[Pipeline]:
    database = SqlDatabase(ledger_url)
    made = Pipeline(database, tmp_path / "store", shelf=shelf, in_hand=True)
    yield made
    made.close()
    database.close()


@pytest.fixture(params=["plain", "tls"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Origin]:
    if request.param == "plain":
        with Origin() as server:
            yield server
        return
    with Origin(Authority(tmp_path / "ca").sign(NAME).serving(tmp_path)) as server:
        yield server


def test_late_bytes_are_never_the_content_of_another_file(origin: Origin, pipeline: Pipeline, tmp_path: Path) -> None:
    authority = tmp_path / "ca" / "ca.pem"
    net = replace(NET, read_s=5.0, head_s=5.0, ca_file=str(authority) if authority.exists() else None)
    pipeline.surroundings(net, resolve=lambda _host, _port: ["127.0.0.1"])
    urls = fill(origin, TENANTS, innocent=200)
    jobs = [pipeline.plan(origin.url + url.path, tenant_id=url.tenant) for url in urls]
    drive_together(pipeline, jobs)
    found = filter(None, [judged(pipeline, url, job) for url, job in zip(urls, jobs, strict=True)])
    assert "\n".join(found) == ""


def drive_together(pipeline: Pipeline, jobs: list[str]) -> None:
    """As several workers do it; jobs that were put off are due at once."""
    for _ in range(5):
        dispatch.dispatch(pipeline.deps)
        hints, pipeline.publisher.queue = pipeline.publisher.queue, []
        if not hints:
            return
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda hint: carry_out(pipeline.deps, hint, in_hand=True), hints))
        for job in jobs:
            if pipeline.row(job).due_at is not None:
                pipeline.make_due(job)


def judged(pipeline: Pipeline, url: Url, job: str) -> str:
    """What is wrong with how the job ended; empty when nothing is."""
    row, code = pipeline.row(job), pipeline.error(job)
    name = f"{url.path} ({url.hostile or 'innocent'})"
    if row.state == State.DEDUPED:
        (artifact,) = pipeline.artifacts(job, Scope(url.tenant))
        if artifact.sha256 != sha256(url.body):
            return f"{name}: wrong bytes"
    elif not url.hostile:
        return f"{name}: {row.state} with {code}"
    if not url.hostile and row.attempts:
        return f"{name}: it cost an attempt ({code})"
    return ""
