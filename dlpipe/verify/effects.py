"""What must hold between the ops of a job, its state, and what those ops say they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from dlpipe.verify import rules
from dlpipe.verify.facts import JobFacts

Fault = tuple[str, str]


def ops(facts: JobFacts, should_be_marked: Callable[[Any], bool], there: Callable[[str], bool]) -> Iterator[Fault]:
    """All that is wrong with the ops of an artifact job; `facts.ops` come by fence."""
    detail = facts.detail
    backfilled = detail.run == 0 and not facts.ops
    known = [op for op in facts.ops if op.op_type in rules.ORDER]
    for op in known:
        if op.fence > detail.fence:
            yield "fence_wrong", f"{op.op_type} has {op.fence}, the job {detail.fence}"
    yield from _started(facts, known, should_be_marked)
    finished = [op for op in known if op.state == "finished"]
    results = {op.op_key: rules.result_of(op.op_type, op.result_json) for op in finished}
    broken = [op for op in finished if results[op.op_key] is None]
    for op in broken:
        yield "op_unreadable", f"{op.op_type} of run {op.run}"
    yield from _twice(finished)
    if not backfilled:
        yield from _state(facts, finished)
    if not broken:
        yield from _agreement(facts, finished, results)
        yield from _effects(facts, finished, results, there)
        if not backfilled:
            yield from _makers(facts, finished, results)


def _started(facts: JobFacts, known: list[Any], should_be_marked: Callable[[Any], bool]) -> Iterator[Fault]:
    detail = facts.detail
    started = [op for op in known if op.state == "started"]
    for fence, count in Counter(op.fence for op in started).items():
        if count > 1:
            yield "op_started_twice", f"fence {fence}"
    if not rules.ended(detail.state, due=detail.due_at is not None):
        return
    for op in started:
        if op.fence >= detail.fence or should_be_marked(op):
            yield "op_unfinished", f"{op.op_type} of run {op.run}"


def _twice(finished: list[Any]) -> Iterator[Fault]:
    for (run, kind), count in Counter((op.run, op.op_type) for op in finished).items():
        if count > 1:
            yield "op_recorded_twice", f"{kind} of run {run}"


def _state(facts: JobFacts, finished: list[Any]) -> Iterator[Fault]:
    """The state says which ops must be finished, and which may be."""
    detail = facts.detail
    rule = rules.STATES[detail.state]
    of_run = [op for op in finished if op.run == detail.run]
    # A further run that was taken back left the job at the end that an earlier run had brought it to.
    withdrawn = rule.ended and detail.withdrawn_run == detail.run
    may = rules.WITHDRAWN_MAY if withdrawn else rule.may
    have = {op.op_type for op in (of_run if rule.of_run and not withdrawn else finished)}
    # Where nothing but a backfill ever registered anything, no op did.
    needs = 0 if withdrawn and all(row.run == 0 for row in facts.manifest) else rule.needs
    missing = [kind for kind in rules.ORDER[:needs] if kind not in have]
    if missing:
        yield "state_ops", f"{detail.state} without {', '.join(missing)}"
    ahead = [op.op_type for op in of_run if op.op_type in rules.ORDER[may:]]
    if ahead:
        yield "state_ops", f"{detail.state}, and {', '.join(ahead)} is recorded"
    # One fence is one claim, and the stages of a run are claimed one after the other, or recorded with the one before.
    by_stage = sorted(of_run, key=lambda op: rules.ORDER.index(op.op_type))
    twice = len({op.op_type for op in of_run}) < len(of_run)  # which is told apart
    if not twice and any(_out_of_order(one, other) for one, other in pairwise(by_stage)):
        yield "state_ops", f"the stages of run {detail.run} were not recorded in their order"


def _out_of_order(one: Any, other: Any) -> bool:
    """`other` is of the stage behind."""
    return bool(one.fence > other.fence or (one.fence == other.fence and other.op_type not in rules.JOINED))


def _agreement(facts: JobFacts, finished: list[Any], results: dict[str, Any]) -> Iterator[Fault]:
    """Each stage builds on what the one before it handed over."""
    state = facts.detail.state
    newest = {op.op_type: op for op in finished}  # they come by fence
    if state not in rules.PLACED or "FINALIZE" not in newest:
        return
    placed_op = newest["FINALIZE"]
    placed = results[placed_op.op_key]
    streamed = [results[op.op_key] for op in finished if op.op_type == "STREAM" and op.run == placed_op.run]
    for stream in streamed:
        if (stream["sha256"], stream["size"]) != (placed["sha256"], placed["size"]):
            yield "op_results_differ", "STREAM and FINALIZE"
    if state != "FINALIZED" and "INDEX" in newest:
        indexed = results[newest["INDEX"].op_key]
        if (indexed["sha256"], indexed["pointer"]) != (placed["sha256"], placed["pointer"]):
            yield "op_results_differ", "FINALIZE and INDEX"
    if facts.detail.expected_sha256 not in (None, placed["sha256"]):
        yield "op_results_differ", "FINALIZE and the sha256 that was asked for"


def _effects(
    facts: JobFacts, finished: list[Any], results: dict[str, Any], there: Callable[[str], bool]
) -> Iterator[Fault]:
    """What a finished op says it did is there."""
    made = {row.artifact_uuid: row for row in facts.made}
    pointers = {row.storage_pointer for row in facts.made}
    manifest = {row.artifact_uuid: row for row in facts.manifest}
    newest = {op.op_type: op for op in finished}
    for op in finished:
        result = results[op.op_key]
        if op.op_type == "INDEX":
            artifact = made.get(result["artifact_uuid"])
            if artifact is None:
                yield "op_without_effect", f"INDEX of run {op.run}: its artifact is not registered"
            elif (artifact.sha256, artifact.storage_pointer) != (result["sha256"], result["pointer"]):
                yield "result_pointer", f"artifact {artifact.artifact_uuid}"
        elif op.op_type == "HEAD" and result.get("known_sha256") not in {None, *(row.sha256 for row in facts.made)}:
            yield "op_without_effect", f"HEAD of run {op.run}: its artifact is not registered"
    if "FINALIZE" in newest and facts.detail.state in rules.PLACED:
        placed = results[newest["FINALIZE"].op_key]
        path = rules.path_in(placed["pointer"])
        # Where an artifact names the file, it is the artifact's file that is missing.
        if placed["pointer"] not in pointers and (path is None or not there(path)):
            yield "op_without_effect", f"FINALIZE of run {newest['FINALIZE'].run}: its file is not there"
    if facts.detail.state == "DEDUPED" and {"INDEX", "DEDUPE"} <= newest.keys():
        noted = manifest.get(results[newest["INDEX"].op_key]["artifact_uuid"])
        # Done again for a file that was brought again, the op keeps its first result; the manifest has the latest.
        done = newest["DEDUPE"]
        is_first = all(op.started_at <= done.finished_at for op in finished)
        result = results[done.op_key]
        # The manifest is its owner's, and what another tenant's file accounts for is not said there.
        told = "download" if result.get("quiet") else result["action"]
        right = {told} if is_first else rules.DEDUPE_ACTIONS
        if noted is not None and noted.dedupe_action not in right:
            yield "op_without_effect", f"DEDUPE of run {done.run}: the manifest says otherwise"


def _makers(facts: JobFacts, finished: list[Any], results: dict[str, Any]) -> Iterator[Fault]:
    """Every artifact was made by an op that is on record."""
    indexed = {results[op.op_key]["artifact_uuid"] for op in finished if op.op_type == "INDEX"}
    found = {results[op.op_key].get("known_sha256") for op in finished if op.op_type == "HEAD"}
    # What was backfilled says so by the number of its run; no op ever was.
    backfilled = {row.artifact_uuid for row in facts.manifest if row.run == 0}
    for row in facts.made:
        if row.artifact_uuid in backfilled or facts.is_former(row):
            continue
        if row.artifact_uuid not in indexed and row.sha256 not in found:
            yield "effect_without_op", f"artifact {row.artifact_uuid}"
