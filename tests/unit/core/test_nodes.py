"""When a node counts as gone, and who may keep a job (OPS-4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlpipe.core.flow import Queue, needs_part, node_queue
from dlpipe.core.nodes import Node, NodePolicy, Stand, judge, keeps, stands
from dlpipe.core.states import State

POLICY = NodePolicy("a", beat_s=10.0, gone_after_s=120.0)
LONG = 10_000.0
DAY = 86_400.0
HEARD = Node("heard", silent_s=5.0, steady_s=LONG)
LOST = Node("lost", silent_s=120.0, steady_s=LONG)


@pytest.mark.parametrize(
    ("node", "others", "stand"),
    [
        (HEARD, [], Stand.WORKING),
        (HEARD, [LOST], Stand.WORKING),
        (replace(HEARD, silent_s=29.9), [LOST], Stand.WORKING),
        (replace(HEARD, silent_s=30.0), [LOST], Stand.SILENT),  # three beats were missed
        (replace(HEARD, drains=True), [], Stand.DRAINING),
        (LOST, [HEARD], Stand.GONE),
        (replace(LOST, drains=True), [HEARD], Stand.GONE),
        (replace(LOST, silent_s=float("inf")), [HEARD], Stand.GONE),  # of one queue there was never a sign
        (replace(LOST, silent_s=119.9), [HEARD], Stand.SILENT),  # not long enough
        (LOST, [], Stand.SILENT),  # there is nowhere else to go
        (replace(LOST, silent_s=7 * DAY), [], Stand.SILENT),
        (replace(LOST, silent_s=7 * DAY), [replace(HEARD, drains=True)], Stand.SILENT),
        (replace(LOST, silent_s=7 * DAY + 1), [replace(HEARD, drains=True)], Stand.GONE),  # but no job waits for longer
        (replace(LOST, silent_s=8 * DAY), [], Stand.SILENT),  # all were off, and nobody is back yet
        (replace(LOST, silent_s=8 * DAY), [replace(HEARD, steady_s=119.9)], Stand.SILENT),  # the first that is back
        (replace(LOST, silent_s=8 * DAY), [replace(HEARD, silent_s=30.0, drains=True)], Stand.SILENT),
        (replace(LOST, silent_s=float("inf")), [], Stand.SILENT),  # it is only starting
        (LOST, [replace(LOST, name="other")], Stand.SILENT),  # nobody is heard: the broker or the database was away
        (LOST, [replace(HEARD, silent_s=30.0)], Stand.SILENT),
        (LOST, [replace(HEARD, steady_s=119.9)], Stand.SILENT),  # it was away itself not long ago
        (LOST, [replace(HEARD, drains=True)], Stand.SILENT),  # it would not take the jobs
    ],
)
def test_a_node_is_gone_when_it_was_silent_while_another_was_heard_all_the_time(
    node: Node, others: list[Node], stand: Stand
) -> None:
    assert judge(node, [node, *others], POLICY) is stand
    assert stands([node, *others], POLICY)[node.name] is stand


@pytest.mark.parametrize(
    ("stand", "keeps_it"),
    [
        (Stand.WORKING, True),
        (Stand.SILENT, True),  # it may only be starting again, and has the bytes
        (Stand.DRAINING, False),
        (Stand.GONE, False),
        (None, False),  # from before the node was called so
    ],
)
def test_a_further_run_goes_to_its_bytes_as_long_as_somebody_may_take_it_there(
    stand: Stand | None, keeps_it: bool
) -> None:
    assert keeps(stand) is keeps_it


def test_a_run_needs_its_part_until_the_file_has_its_place() -> None:
    without = {State.FINALIZED, State.INDEXED, State.DEDUPED, State.SKIPPED_DUPLICATE, State.CANCELED}
    assert {state for state in State if not needs_part(state)} == without


def test_two_nodes_never_have_a_queue_in_common() -> None:
    names = ["a", "b", "a.disk", "net.a", "disk.a"]
    queues = [node_queue(kind, name) for kind in (Queue.NET, Queue.DISK) for name in names]
    assert len(set(queues)) == len(queues)
