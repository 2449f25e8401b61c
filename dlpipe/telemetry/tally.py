"""From events to numbers on the board, and back to what a page shows."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from dlpipe.core.events import (
    Event,
    HintsSent,
    MessageDropped,
    RoundEnded,
    StageFailed,
    StageRecorded,
    StageReplayed,
)
from dlpipe.core.results import DedupeAction, DedupeResult, HeadResult, Result, ResumeResult, StreamResult
from dlpipe.telemetry.series import BUCKETS_S

log = logging.getLogger(__name__)

_BETWEEN = "\t"
SUM = "sum"


class Numbers(Protocol):
    def add(self, amounts: dict[str, float]) -> None: ...
    def read(self) -> Mapping[str, float]: ...


def name_of(series: str, *labels: str) -> str:
    return _BETWEEN.join((series, *labels))


class Tally:
    """The port `Telemetry`, counting on a board."""

    def __init__(self, board: Numbers) -> None:
        self._board = board

    def tell(self, event: Event) -> None:
        try:
            self._board.add(amounts(event))
        except Exception as error:
            log.warning("not counted: %s", type(error).__name__)  # the work matters, and it is done

    def read(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """By series and label values; of a histogram, the labels are followed by its bucket or `sum`."""
        found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for name, value in self._board.read().items():
            series, *labels = name.split(_BETWEEN)
            found[series][tuple(labels)] = value
        return found


def amounts(event: Event) -> dict[str, float]:
    """What an event adds to which number."""
    match event:
        case StageRecorded(stage=stage, result=result, elapsed_s=elapsed_s):
            return {
                name_of("dlpipe_stages_recorded", stage): 1,
                name_of("dlpipe_stage_seconds", stage, bucket(elapsed_s)): 1,
                name_of("dlpipe_stage_seconds", stage, SUM): elapsed_s,
                **_of_result(result),
            }
        case StageReplayed(stage=stage):
            return {name_of("dlpipe_stages_replayed", stage): 1}
        case StageFailed(code=code, then=then):
            return {name_of("dlpipe_failures", code, then): 1}
        case MessageDropped(stage=stage, reason=reason):
            lost = {name_of("dlpipe_lease_losses", stage): 1.0} if reason == "lease_lost" else {}
            return {name_of("dlpipe_messages_dropped", reason): 1, **lost}
        case RoundEnded(counts=counts):
            kinds = {name_of("dlpipe_reconcile_findings", kind): float(n) for kind, n in counts.items() if n}
            return {name_of("dlpipe_reconcile_rounds"): 1, **kinds}
        case HintsSent(count=count):
            return {name_of("dlpipe_hints_sent"): count}


def _of_result(result: Result) -> dict[str, float]:
    match result:
        case StreamResult(bytes_written=written, resumed_from_bytes=resumed):
            return {name_of("dlpipe_received_bytes"): written, name_of("dlpipe_resumed_bytes"): resumed}
        case ResumeResult(decision=decision):
            return {name_of("dlpipe_resume_decisions", decision): 1}
        case DedupeResult(action=action, saved_bytes=saved):
            return {name_of("dlpipe_dedupe_actions", action): 1, name_of("dlpipe_dedupe_saved_bytes"): saved}
        case HeadResult(known_sha256=str()):
            return {name_of("dlpipe_dedupe_actions", DedupeAction.SKIPPED): 1}
        case _:
            return {}


def bucket(elapsed_s: float) -> str:
    """The upper bound of the narrowest bucket that holds it."""
    at = bisect_left(BUCKETS_S, elapsed_s)
    return str(BUCKETS_S[at]) if at < len(BUCKETS_S) else "+Inf"
