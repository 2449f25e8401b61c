"""Two nodes, each with a staging folder of its own, and one store: where jobs go, and what becomes of parts (OPS-4)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from dlpipe.core.errors import InvalidInput, Misconfigured, Retryable
from dlpipe.core.flow import Queue
from dlpipe.core.nodes import NodePolicy, Stand
from dlpipe.core.ports import Hint
from dlpipe.core.states import State
from dlpipe.core.why import Situation
from dlpipe.pipeline import dispatch, nodes, runner
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.reconcile import reconcile, sweep
from dlpipe.pipeline.why import why
from dlpipe.store import LocalStaging
from dlpipe.store.bucket import Bucket
from tests.fakes.source import Says
from tests.objectserver import objects
from tests.world import DEFAULT, World, sha256, some_bytes, staged

BODY = some_bytes(300_000)
URL = "http://files.example/a.bin"
BOTH = (Queue.NET, Queue.DISK)
OLD_S = 9_999.0


def beat(deps: Deps) -> bool:
    assert deps.policy.nodes is not None
    return nodes.beat(deps.database, deps.staging, deps.policy.nodes, BOTH)


class Machines:
    """Nodes `a` and `b` around one ledger, one store, one broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = {"now": 0.0}
        self.all = {name: self._deps(name) for name in ("a", "b")}
        for deps in self.all.values():
            beat(deps)
        self.heard("a", 0.0)
        self.heard("b", 0.0)

    def _deps(self, name: str) -> Deps:
        deps = self.world.deps
        policy = replace(deps.policy, nodes=NodePolicy(name, beat_s=10.0, gone_after_s=120.0))
        staging = LocalStaging(self.world.root, node=name)
        return replace(deps, policy=policy, staging=staging, unreturned=[], known_stores={})

    def heard(self, name: str, ago_s: float) -> None:
        """As if its last sign had been so long ago, after a long row of them."""
        self.world.sql(
            "UPDATE nodes SET net_at = net_at - :ago, disk_at = disk_at - :ago, steady_since = steady_since - 9999000"
            " WHERE name = :name",
            ago=int(ago_s * 1000), name=name,
        )  # fmt: skip

    def send(self) -> list[Hint]:
        self.world.publisher.queue.clear()
        dispatch.dispatch(self.all["a"])
        return list(self.world.publisher.queue)

    def carry_out(self, hint: Hint, anywhere: str = "a", upto: str = "") -> list[runner.Outcome]:
        """What workers make of a chain: what works on the part goes where the part is."""
        found: list[runner.Outcome] = []
        node = hint.node
        for row in hint.stages:
            if row.name == upto:
                break
            at = node if row.staged and node else anywhere
            found.append(runner.run(self.all[at], row.name, hint.job_id, hint.run))
            last = found[-1]
            if not isinstance(last, runner.Done) or not last.goes_on:
                break
            node = last.node
        return found

    def parts(self) -> list[str]:
        return [name for name in self.world.staged() if name.endswith(".part")]


@pytest.fixture
def machines(world: World) -> Machines:
    world.source.put(URL, BODY)
    return Machines(world)


def broken_off(machines: Machines, at: int = 200_000) -> str:
    """A job whose first run ended in the middle of its body, on node a; its next run is due."""
    world = machines.world
    world.source.script(URL, Says(body=[BODY[:at], Retryable("cut", code="body_cut")]))
    job_id = world.plan(URL)
    (hint,) = machines.send()
    assert isinstance(machines.carry_out(hint)[-1], runner.Failed)
    assert world.row(job_id).node == "a"
    world.make_due(job_id)
    return job_id


# ── where jobs go ─────────────────────────────────────────────────────────────────────────────────


def test_a_chain_goes_on_where_the_part_is_until_the_file_has_its_place(machines: Machines) -> None:
    job_id = machines.world.plan(URL)
    (hint,) = machines.send()
    assert hint.node is None
    outcomes = machines.carry_out(hint, anywhere="b")
    assert [getattr(one, "node", "") for one in outcomes] == [None, "b", "b", "b", None, None]
    assert machines.world.state(job_id) is State.DEDUPED
    assert machines.world.row(job_id).node is None


def test_the_next_run_goes_to_the_bytes_and_goes_on_from_them(machines: Machines) -> None:
    job_id = broken_off(machines)
    (hint,) = machines.send()
    assert hint.node == "a"
    machines.carry_out(hint, anywhere="b")
    assert machines.world.state(job_id) is State.DEDUPED
    assert machines.world.source.gets(URL)[-1].start > 0


@pytest.mark.parametrize("why", ["gone", "drained"])
def test_where_nobody_is_the_next_run_is_not_sent_and_begins_afresh(machines: Machines, why: str) -> None:
    job_id = broken_off(machines)
    if why == "gone":
        machines.heard("a", 500.0)
    else:
        nodes.drain(machines.all["b"], "a", on=True)
    machines.world.publisher.queue.clear()
    dispatch.dispatch(machines.all["b"])
    (hint,) = machines.world.publisher.queue
    assert hint.node is None
    machines.carry_out(hint, anywhere="b")
    assert machines.world.state(job_id) is State.DEDUPED
    assert machines.world.source.gets(URL)[-1].start == 0
    assert list(machines.world.blobs().values()) == [BODY]


def test_a_node_that_is_only_silent_is_waited_for(machines: Machines) -> None:
    broken_off(machines)
    machines.heard("a", 60.0)
    (hint,) = machines.send()
    assert hint.node == "a"


def test_a_message_on_the_wrong_node_changes_nothing(machines: Machines) -> None:
    job_id = machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    before = machines.world.everything()
    assert runner.run(machines.all["b"], "stream", job_id, 1) == runner.Dropped("other_node")
    assert machines.world.everything() == before


# ── a node is gone ────────────────────────────────────────────────────────────────────────────────


def test_what_waits_in_the_queue_of_a_node_that_is_gone_begins_afresh_elsewhere(machines: Machines) -> None:
    world, job_id = machines.world, machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="finalize")
    machines.heard("a", 500.0)
    report = reconcile(machines.all["b"])
    assert (report.nodes_gone, report.jobs_handed_on, report.dispatched) == (1, 1, 1)
    again = world.publisher.queue[-1]
    assert (again.job_id, again.run, again.node) == (job_id, 2, None)
    machines.carry_out(again, anywhere="b")
    assert world.state(job_id) is State.DEDUPED
    assert world.row(job_id).attempts == 0
    assert list(world.blobs().values()) == [BODY]
    # The node comes back, and with it the message that lay in its queue.
    assert runner.run(machines.all["a"], "finalize", job_id, 1) == runner.Dropped("older_run")


def test_a_message_for_a_node_is_lost_only_when_its_own_queue_is_short_of_it(machines: Machines) -> None:
    world = machines.world
    world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    world.age(hint.job_id)
    world.publisher.queue.clear()
    assert dispatch.dispatch_lost(machines.all["b"]) == 1
    (again,) = world.publisher.queue
    assert (again.node, again.stages[0].name) == ("a", "stream")
    world.age(hint.job_id)
    assert dispatch.dispatch_lost(machines.all["b"]) == 0  # there it is


def test_messages_in_other_queues_do_not_hide_the_loss(machines: Machines) -> None:
    world = machines.world
    world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    world.age(hint.job_id)
    world.publisher.queue[:] = [replace(hint, node="b", stages=hint.stages[2:]), replace(hint, node=None)]
    assert dispatch.dispatch_lost(machines.all["b"]) == 1


def test_when_nobody_is_heard_nobody_is_gone(machines: Machines) -> None:
    machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    before = machines.world.row(hint.job_id)
    for name in ("a", "b"):
        machines.heard(name, 500.0)
    assert reconcile(machines.all["b"]).nodes_gone == 0
    beat(machines.all["b"])  # the first to be heard when the broker is back
    assert reconcile(machines.all["b"]).nodes_gone == 0
    assert machines.world.row(hint.job_id).node == before.node == "a"


def test_a_dry_run_hands_nothing_on(machines: Machines) -> None:
    machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    machines.heard("a", 500.0)
    before = machines.world.everything()
    assert reconcile(machines.all["b"], dry_run=True).jobs_handed_on == 1
    assert machines.world.everything() == before


def test_with_a_bucket_each_node_has_a_disk_of_its_own(machines: Machines, tmp_path: Path) -> None:
    """Of the one that is gone, nothing is left but a job's row."""
    store = objects(Bucket(MemoryStore()))
    for name, deps in machines.all.items():
        staging = LocalStaging(tmp_path / name, node=name, own_disk=True)
        machines.all[name] = replace(deps, store=store, staging=staging, known_stores={})
    machines.world.sql("UPDATE nodes SET folder_id = NULL")
    job_id = machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="finalize")
    assert staged(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    machines.heard("a", 500.0)
    assert reconcile(machines.all["b"]).jobs_handed_on == 1
    machines.carry_out(machines.world.publisher.queue[-1], anywhere="b")
    assert machines.world.state(job_id) is State.DEDUPED
    (record,) = machines.world.artifacts(job_id)
    assert store.is_right(record.storage_pointer, sha256(BODY), len(BODY))
    assert [name for name in staged(tmp_path / "b") if name.endswith(".part")] == []


def test_a_node_that_comes_back_without_its_disk_begins_anew(machines: Machines, tmp_path: Path) -> None:
    """Its queue still holds the messages; what they build on is not there."""
    job_id = machines.world.plan(URL)
    (hint,) = machines.send()
    machines.carry_out(hint, upto="finalize")
    shutil.rmtree(machines.world.root / ".staging" / "@a")
    outcome = runner.run(machines.all["a"], "finalize", job_id, 1)
    assert isinstance(outcome, runner.Failed)
    machines.world.make_due(job_id)
    (again,) = machines.send()
    machines.carry_out(again)
    assert machines.world.state(job_id) is State.DEDUPED
    assert list(machines.world.blobs().values()) == [BODY]


# ── staging ───────────────────────────────────────────────────────────────────────────────────────


def test_each_node_looks_after_its_own_folder_only(machines: Machines) -> None:
    job_id = machines.world.plan(URL)
    with machines.world.database.write() as unit:
        unit.owned(DEFAULT).cancel(job_id)
    for deps in machines.all.values():
        with deps.staging.claim("default", URL, job_id, 1) as part:
            part.write(b"old")
    assert len(machines.parts()) == 2
    for deps in machines.all.values():
        old = replace(deps.policy.heal, part_age_s=0.0)
        machines.all[deps.policy.node or ""] = replace(deps, policy=replace(deps.policy, heal=old))
    report = sweep(machines.all["b"])
    assert report.parts_removed == 1
    assert [name.split("/")[0] for name in machines.parts()] == ["@a"]
    assert reconcile(machines.all["a"]).parts_removed == 1
    assert machines.parts() == []


def test_a_part_goes_when_its_job_goes_on_elsewhere_and_stays_while_it_may_come_back(machines: Machines) -> None:
    job_id = broken_off(machines)
    for name, deps in machines.all.items():
        old = replace(deps.policy.heal, part_age_s=0.0)
        machines.all[name] = replace(deps, policy=replace(deps.policy, heal=old))
    assert sweep(machines.all["a"]).parts_removed == 0
    machines.world.sql("UPDATE artifact_jobs SET node = NULL")
    assert sweep(machines.all["a"]).parts_removed == 0
    machines.world.sql("UPDATE artifact_jobs SET node = 'b'")
    assert sweep(machines.all["a"]).parts_removed == 1
    assert machines.world.row(job_id).node == "b"


def test_other_nodes_are_asked_to_look_after_theirs_while_they_are_heard(machines: Machines) -> None:
    assert nodes.sweepers(machines.all["a"]) == ["b"]
    nodes.drain(machines.all["a"], "b", on=True)
    assert nodes.sweepers(machines.all["a"]) == ["b"]
    machines.heard("b", 60.0)
    assert nodes.sweepers(machines.all["a"]) == []
    assert nodes.sweepers(machines.world.deps) == []


def test_a_silent_node_that_is_not_given_up_gets_no_message_each_round(machines: Machines) -> None:
    """They would lie in its queue without end, and count there as if they were messages for jobs."""
    nodes.drain(machines.all["a"], "a", on=True)  # so nobody could take what is on b, which is never gone
    machines.heard("b", 99_999.0)
    assert nodes.standing(machines.all["a"])["b"] is Stand.SILENT
    assert nodes.sweepers(machines.all["a"]) == []


def test_bytes_that_were_left_on_a_node_are_not_mixed_with_those_of_a_file_that_has_changed_since(
    machines: Machines,
) -> None:
    world, job_id = machines.world, broken_off(machines)
    changed = BODY[::-1]
    world.source.put(URL, changed, etag='"v2"')
    world.sql("UPDATE artifact_jobs SET node = NULL")
    (hint,) = machines.send()
    machines.carry_out(hint, anywhere="b", upto="finalize")
    world.sql("UPDATE artifact_jobs SET node = NULL, published_at = NULL, due_at = 1")
    assert len(machines.parts()) == 2  # one on each
    (hint,) = machines.send()
    machines.carry_out(hint, anywhere="a")
    assert world.state(job_id) is State.DEDUPED
    (stored,) = (one for one in world.root.rglob("*.bin") if ".staging" not in one.parts)
    assert sha256(stored.read_bytes()) == sha256(changed)


def test_why_says_that_a_job_waits_for_a_node_that_is_not_heard(machines: Machines) -> None:
    job_id = machines.world.plan(URL)
    machines.carry_out(machines.send()[0], upto="finalize")

    def situation() -> Situation:
        found = why(machines.all["b"], DEFAULT, job_id)
        assert found is not None
        return found.situation

    assert situation() is Situation.NEXT_STAGE
    machines.heard("a", 60.0)
    assert situation() is Situation.NODE_SILENT


# ── draining ──────────────────────────────────────────────────────────────────────────────────────


def test_a_drained_node_takes_nothing_new_and_finishes_what_it_has(machines: Machines) -> None:
    world = machines.world
    world.plan(URL)
    (mine,) = machines.send()
    machines.carry_out(mine, upto="stream")
    other = world.plan(world.source.put("http://files.example/b.bin", BODY[:999]))
    found = nodes.drain(machines.all["a"], "a", on=True)
    assert (found.stand, found.running, found.held, found.elsewhere) == (Stand.DRAINING, 1, 0, True)
    assert not any(hint.job_id == mine.job_id for hint in machines.send())
    (new,) = world.publisher.queue
    assert machines.carry_out(new, anywhere="a")[-1] == runner.Dropped("node_takes_none")
    world.make_due(other)
    (new,) = machines.send()
    machines.carry_out(new, anywhere="b")
    assert world.state(other) is State.DEDUPED
    for stage in ("stream", "finalize"):
        assert isinstance(runner.run(machines.all["a"], stage, mine.job_id, 1), runner.Done)
    assert nodes.look(machines.all["b"], "a").running == 0
    assert nodes.drain(machines.all["b"], "a", on=False).stand is not Stand.DRAINING


def test_handing_back_makes_what_waits_due_elsewhere_and_stops_who_works(machines: Machines) -> None:
    world = machines.world
    world.plan(URL)
    (waiting,) = machines.send()
    machines.carry_out(waiting, upto="finalize")
    other = world.plan(world.source.put("http://files.example/b.bin", BODY[:999]))
    (hint,) = machines.send()
    machines.carry_out(hint, upto="stream")
    stopped: list[str] = []
    world.source.before_get = lambda: stopped.append(hand_back())

    def hand_back() -> str:
        nodes.drain(machines.all["b"], "a", on=True)
        found = nodes.hand_back(machines.all["b"], "a")
        return f"{found.handed_on} {found.running} {found.held}"

    outcome = runner.run(machines.all["a"], "stream", other, 1)
    assert stopped == ["1 1 1"]
    assert outcome == runner.Dropped("lease_lost")
    assert (world.row(waiting.job_id).node, world.row(waiting.job_id).attempts) == (None, 0)
    assert nodes.look(machines.all["b"], "a").running == 0
    world.source.before_get = lambda: None
    for again in machines.send():
        assert again.node is None
        machines.carry_out(again, anywhere="b")
    assert {world.state(job_id) for job_id in (waiting.job_id, other)} == {State.DEDUPED}
    assert {world.row(job_id).attempts for job_id in (waiting.job_id, other)} == {0}


def test_only_nodes_that_were_heard_can_be_drained(machines: Machines) -> None:
    with pytest.raises(InvalidInput, match="was ever heard") as error:
        nodes.drain(machines.all["a"], "c", on=True)
    assert error.value.code == "node_unknown"
    assert "a, b" in error.value.hint


def test_where_staging_is_shared_there_is_nothing_to_drain(world: World) -> None:
    with pytest.raises(Misconfigured) as error:
        nodes.drain(world.deps, "a", on=True)
    assert error.value.code == "staging_shared"


def test_two_machines_cannot_be_one_node(machines: Machines) -> None:
    twin = replace(machines.all["b"], staging=LocalStaging(machines.world.root / "elsewhere", node="b"))
    with pytest.raises(Misconfigured) as error:
        beat(twin)
    assert error.value.code == "node_name_taken"
