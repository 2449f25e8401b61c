"""Each guard on connections that are used again, by itself (HTTP.md rows 49, 50).

The server sends its surplus once the next request has come on that connection, so a guard that is gone is always seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlpipe.core.model import Scope
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.net.limits import Bounds, HostLimits
from tests.hostile import honest
from tests.late_bytes import FORGED, FORGED_PATH, FORGES_A_FILE, SURPLUS
from tests.origin import Asked, Late, Origin, Say, answer
from tests.pipeline import Pipeline
from tests.world import sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("it is about connections, whatever the ledger", "ledger"),
    pytest.mark.no_engines("broker", "store"),
]

FIRST, SECOND, THIRD = (b"the %s file; " % word * 30 for word in (b"first", b"second", b"third"))


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        for path, body in (("/second", SECOND), ("/third", THIRD), (FORGED_PATH, FORGED)):
            server.on(path, honest(body))
        yield server


@pytest.fixture
def pipeline(sqlite_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    database = SqlDatabase(sqlite_url)
    made = Pipeline(database, tmp_path / "store", in_hand=True)
    yield made
    made.close()
    database.close()


def behind(method: str, late: Late) -> Callable[[Asked], Say]:
    """The first file, rightly answered, and more behind the answers to that method."""
    told = honest(FIRST)
    return lambda asked: Say(told(asked).data, late=late if asked.method == method else None)


def assert_right(pipeline: Pipeline, url: str, body: bytes, tenant: str = "anna") -> None:
    """The job comes to its end in its first run, with these bytes."""
    job = pipeline.fetch(url, tenant_id=tenant)
    row = pipeline.row(job)
    assert (State(row.state), pipeline.error(job), row.attempts, row.run) == (State.DEDUPED, None, 0, 1)
    assert [one.sha256 for one in pipeline.artifacts(job, Scope(tenant))] == [sha256(body)]


def connections(origin: Origin, path: str, method: str = "GET") -> list[int]:
    return [asked.connection for asked in origin.of(path) if asked.method == method]


def assert_marked(pipeline: Pipeline, origin: Origin) -> None:
    """No connection of the origin is used a second time, by any tenant, for HEAD or GET."""
    before = len(origin.asked)
    for n, tenant in enumerate(("anna", "anna", "bert", "bert")):
        origin.on(f"/again/{n}", honest(b"%d" % n * 50))
        assert_right(pipeline, f"{origin.url}/again/{n}", b"%d" % n * 50, tenant)
    used = [asked.connection for asked in origin.asked]
    later = used[before:]
    assert len(set(later)) == len(later) == 8, "HEAD and GET of four files"
    assert not set(later) & set(used[:before])


def test_head_connection_never_carries_a_get(origin: Origin, pipeline: Pipeline) -> None:
    """A forged file waits behind the HEAD answer, for the very next request on that connection."""
    url = origin.on("/first", behind("HEAD", Late(SURPLUS[FORGES_A_FILE])))
    assert_right(pipeline, url, FIRST)
    assert connections(origin, "/first") != connections(origin, "/first", "HEAD")


def test_connection_of_one_tenant_carries_no_request_of_another(origin: Origin, pipeline: Pipeline) -> None:
    """A forged file waits behind one tenant's GET; only a digest could tell it from an answer."""
    assert_right(pipeline, origin.on("/first", behind("GET", Late(SURPLUS[FORGES_A_FILE]))), FIRST, "anna")
    assert_right(pipeline, origin.url + "/second", SECOND, "bert")
    assert_right(pipeline, origin.url + "/third", THIRD, "bert")
    (annas,), berts = connections(origin, "/first"), connections(origin, "/second") + connections(origin, "/third")
    assert annas not in berts
    assert len(set(berts)) == 1, "within one tenant it is used again"


def test_connection_with_surplus_in_the_same_segment_is_closed_and_marks_its_origin(
    origin: Origin, pipeline: Pipeline
) -> None:
    said = honest(FIRST)
    url = origin.on("/first", lambda asked: Say(said(asked).data + SURPLUS["plain surplus"]))
    assert_right(pipeline, url, FIRST)
    assert_marked(pipeline, origin)


def test_connection_with_surplus_while_it_was_idle_is_closed_and_marks_its_origin(
    origin: Origin, pipeline: Pipeline
) -> None:
    """The surplus is a forged file: the next request of the tenant would take it."""
    assert_right(pipeline, origin.on("/first", honest(FIRST)), FIRST)
    origin.push(origin.asked[-1], SURPLUS[FORGES_A_FILE])
    assert_right(pipeline, origin.url + "/second", SECOND)
    assert not set(connections(origin, "/second")) & set(connections(origin, "/first"))
    assert_marked(pipeline, origin)


_COMPLETED = "half a head of a 200"
"""The true answer completes it, and is what is read."""
_FOR_NOW = "a forged 503"
"""Tried again like any other, after a moment."""
_BY_THE_STAGE = "a forged 200 that is coded"
"""An answer by its head; that it brings no file is for the stage to see, which does not mark origins."""


@pytest.mark.parametrize("surplus", [name for name in SURPLUS if name not in (FORGES_A_FILE, _COMPLETED, _FOR_NOW)])
def test_answer_on_a_reused_connection_is_asked_for_again_on_a_fresh_one(
    surplus: str, origin: Origin, pipeline: Pipeline
) -> None:
    """Whatever stands in front of the answer to the next request of that tenant costs it neither bytes nor attempt."""
    assert_right(pipeline, origin.on("/first", behind("GET", Late(SURPLUS[surplus]))), FIRST)
    assert_right(pipeline, origin.url + "/second", SECOND)
    (first,), second = connections(origin, "/first"), connections(origin, "/second")
    assert second[0] == first, "the connection was used again"
    assert len(second) == 2
    assert second[1] != first
    if surplus != _BY_THE_STAGE:
        assert_marked(pipeline, origin)


@pytest.mark.parametrize("surplus", [_COMPLETED, _FOR_NOW])
def test_answer_behind_late_bytes_that_decide_nothing_is_the_right_one(
    surplus: str, origin: Origin, pipeline: Pipeline
) -> None:
    assert_right(pipeline, origin.on("/first", behind("GET", Late(SURPLUS[surplus]))), FIRST)
    assert_right(pipeline, origin.url + "/second", SECOND)


def test_two_answers_without_a_body_on_a_reused_connection_are_asked_for_again(
    origin: Origin, pipeline: Pipeline
) -> None:
    """A forged answer of no bytes, and more: nothing is read of it, and it must not fail the job either."""
    late = answer(200) + SURPLUS["plain surplus"]
    assert_right(pipeline, origin.on("/first", behind("GET", Late(late))), FIRST)
    assert_right(pipeline, origin.url + "/second", SECOND)
    assert_marked(pipeline, origin)


def test_answer_that_is_refused_for_its_surplus_lets_go_of_its_host(origin: Origin, pipeline: Pipeline) -> None:
    """Of HEAD nothing is read: surplus is seen as soon as the head is there."""
    pipeline.surroundings(limits=HostLimits(Bounds(slots=1)))
    said = honest(FIRST)
    url = origin.on(
        "/first", lambda asked: Say(said(asked).data + (SURPLUS["plain surplus"] if asked.method == "HEAD" else b""))
    )
    assert_right(pipeline, origin.url + "/second", SECOND)
    assert_right(pipeline, url, FIRST)
    assert_right(pipeline, origin.url + "/third", THIRD)
    assert pipeline.slept == []


def test_refusal_that_a_fresh_connection_confirms_stands_and_marks_nothing(origin: Origin, pipeline: Pipeline) -> None:
    assert_right(pipeline, origin.url + "/second", SECOND)
    origin.on("/gone", answer(404))
    job = pipeline.fetch(origin.url + "/gone", tenant_id="anna")
    assert pipeline.error(job) == "http_404"
    assert_right(pipeline, origin.url + "/third", THIRD)
    origin.on("/fourth", honest(b"4" * 100))
    assert_right(pipeline, origin.url + "/fourth", b"4" * 100)
    assert connections(origin, "/third") == connections(origin, "/fourth"), "connections are still used again"
