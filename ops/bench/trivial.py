"""Our workers with stages that do nothing: `celery -A ops.bench.trivial worker`.

What is left is what every job costs: message, lease, claim, the op's start and end, and the state, for each stage.
"""

from __future__ import annotations

from dlpipe.celery import app
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import ArtifactJob
from dlpipe.core.results import (
    DedupeAction,
    DedupeResult,
    FinalizeResult,
    HeadResult,
    IndexResult,
    Result,
    Results,
    ResumeResult,
    StreamResult,
)
from dlpipe.core.states import State
from dlpipe.pipeline import stages
from dlpipe.pipeline.stages.stage import Stage, Work

__all__ = ["app"]

_NO_HASH = "0" * 64


class _Trivial(Stage):
    state: State
    result: Result
    joins: bool
    """It goes on record with the stage in front of it, as its model does."""

    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        return {"run": job.run}

    def perform(self, work: Work) -> Result:
        return self.result

    def enters(self, result: Result) -> State:
        return self.state

    def ahead(self, work: Work) -> Result | None:
        return self.result if self.joins else None


_DONE: dict[str, tuple[State, Result]] = {
    "head": (State.HEAD_DONE, HeadResult(200, _NO_HASH)),
    "resume_decide": (State.RESUME_OK, ResumeResult("fresh", "nothing_there")),
    "stream": (State.STREAMING, StreamResult(_NO_HASH, 0, 0, 0, 0, 0)),
    "finalize": (State.FINALIZED, FinalizeResult(_NO_HASH, 0, "local:nowhere", already_there=False)),
    "index": (State.INDEXED, IndexResult(_NO_HASH, "local:nowhere", _NO_HASH)),
    "dedupe": (State.DEDUPED, DedupeResult(DedupeAction.DOWNLOAD, 0)),
}
assert len(_DONE) == len(OpType)
for _name, (_state, _result) in _DONE.items():
    _model = stages.STAGES[_name]
    _joins = _model.ahead is not Stage.ahead or _model.within is not Stage.within
    stages.STAGES[_name] = type(_name, (_Trivial,), {"state": _state, "result": _result, "joins": _joins})
