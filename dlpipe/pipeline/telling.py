"""What a message came to, told twice: as one line for people, and as a fact to be counted (OPS-7).

Called after the ledger's commit, so that what is counted is what stands in it. The ids are around the line (`about`).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

from dlpipe.core.about import about
from dlpipe.core.events import MessageDropped, StageFailed, StageRecorded, StageReplayed
from dlpipe.core.recovery import FailureWrite
from dlpipe.core.results import Result, StreamResult
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.ending import Recorded

log = logging.getLogger(__name__)


def recorded(deps: Deps, stages: Sequence[Recorded], elapsed_s: float) -> None:
    """Those that went on record in one step; the time is that of the first one, which alone may take any."""
    for one in stages:
        with about(stage=one.row.name):
            fields = {"elapsed_ms": round(elapsed_s * 1000), "bytes": _brought(one.result)}
            log.info("done: %s", one.state, extra={"fields": fields})
            deps.telemetry.tell(StageRecorded(one.row.name, one.result, elapsed_s))
        elapsed_s = 0.0


def replayed(deps: Deps, stage: str, outcome: object) -> None:
    log.info("%s", outcome)
    deps.telemetry.tell(StageReplayed(stage))


def dropped(deps: Deps, stage: str, reason: str, *, why: str = "") -> None:
    """`why`: something went wrong; without it the message was only late, early or one too many."""
    if why:
        log.warning("given up, dropped: %s: %s", reason, why)
    else:
        log.info("dropped: %s", reason)
    deps.telemetry.tell(MessageDropped(stage, reason))


def failed(deps: Deps, stage: str, write: FailureWrite, outcome: object, host: str | None) -> None:
    fields = {"code": write.code, "debug_id": write.debug_id, "due_after_s": write.due_after_s, "host": host}
    log.warning("%s", outcome, extra={"fields": fields})
    deps.telemetry.tell(StageFailed(stage, write.code, _then(write)))


def surprise(error: Exception, debug_id: str) -> None:
    """Where it happened, without the exception's own text: that may hold an address with a secret.

    Said before the failure is written, in case that fails as well.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    fields = {"debug_id": debug_id}
    log.error("debug_id=%s %s at\n%s", debug_id, type(error).__name__, frames, extra={"fields": fields})


def _then(write: FailureWrite) -> str:
    if write.due_after_s is None:
        return "for_good"
    return "retried" if write.uses_attempt else "postponed"


def _brought(result: Result) -> int:
    """Bytes that came over the network for it."""
    return result.bytes_written if isinstance(result, StreamResult) else 0
