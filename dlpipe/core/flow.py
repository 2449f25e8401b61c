"""The stages of an artifact job in their order, and which of them a run still has to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core import states
from dlpipe.core.states import State


class OpType(StrEnum):
    HEAD = "HEAD"
    RESUME = "RESUME"
    STREAM = "STREAM"
    FINALIZE = "FINALIZE"
    INDEX = "INDEX"
    DEDUPE = "DEDUPE"


class Queue(StrEnum):
    PLAN = "plan"
    NET = "net"
    DISK = "disk"
    BEAT = "beat"


@dataclass(frozen=True, slots=True)
class StageRow:
    name: str
    op: OpType
    queue: Queue
    progress: int
    """How far a job is, in percent, once this stage is recorded."""
    staged: bool = False
    """It works on the part in the staging folder."""


STAGES: tuple[StageRow, ...] = (
    StageRow("head", OpType.HEAD, Queue.NET, 5),
    StageRow("resume_decide", OpType.RESUME, Queue.NET, 10, staged=True),
    StageRow("stream", OpType.STREAM, Queue.NET, 80, staged=True),
    StageRow("finalize", OpType.FINALIZE, Queue.DISK, 90, staged=True),
    StageRow("index", OpType.INDEX, Queue.DISK, 95),
    StageRow("dedupe", OpType.DEDUPE, Queue.DISK, 100),
)
_BY_NAME = {row.name: row for row in STAGES}
STAGED = frozenset(row.name for row in STAGES if row.staged)
NODE_QUEUES = (Queue.NET, Queue.DISK)
"""Of these kinds each node has a queue of its own, where staging folders are not shared."""
REPLAYABLE = ("stream", "finalize", "index", "dedupe")
"""The stages that can be done again from the stored file (JOB-7); those before them ask a server."""


def is_replayed(stage_name: str, replay_from: str) -> bool:
    """Does a replay from there do this stage again? It passes those before, and looks at nothing for them."""
    return stage_name in REPLAYABLE[REPLAYABLE.index(replay_from) :]


def node_queue(kind: Queue, node: str) -> str:
    """The queue of that kind from which only this node takes."""
    return f"node.{kind.value}.{node}"


def needs_part(state: State) -> bool:
    """Does a run in this state have a stage left that works on the part?"""
    return any(row.staged for row in remaining(state))


def stage(name: str) -> StageRow:
    return _BY_NAME[name]


def after(row: StageRow) -> StageRow | None:
    """The stage behind that one."""
    behind = STAGES.index(row) + 1
    return STAGES[behind] if behind < len(STAGES) else None


def remaining(state: State) -> tuple[StageRow, ...]:
    """The stages that a run has yet to do for a job in this state; none when it is at an end.

    A state that no stage claims (PLANNED, FAILED) is looked at as the start of a run would leave it; but a good end
    is one, and what a further run would do is for who starts it to ask.
    """
    if state in states.FINISHED:
        return ()
    for at in (state, states.start_target(state)):
        for position, row in enumerate(STAGES):
            if at is not None and at in states.claimable(row.name):
                return STAGES[position:]
    return ()


def first_of_run(state: State) -> StageRow | None:
    """The stage that may start a new run of a job in this state."""
    begin = states.start_target(state)
    return remaining(begin)[0] if begin is not None else None


def startable(stage_name: str) -> frozenset[State]:
    """From which states may this stage be the first of a new run?"""
    found = ((state, first_of_run(state)) for state in State)
    return frozenset(state for state, row in found if row is not None and row.name == stage_name)


def is_past(state: State, stage_name: str) -> bool:
    """Has a job in this state, within its run, already recorded this stage?"""
    if state in (State.PLANNED, State.FAILED, State.CANCELED):
        return False
    return stage_name not in {row.name for row in remaining(state)}
