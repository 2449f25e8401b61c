"""The six stages, by name. A stage knows its effect; the runner knows leases, transactions and failures."""

from dlpipe.pipeline.stages.dedupe import Dedupe
from dlpipe.pipeline.stages.finalize import Finalize
from dlpipe.pipeline.stages.head import Head
from dlpipe.pipeline.stages.index import Index
from dlpipe.pipeline.stages.resume import ResumeDecide
from dlpipe.pipeline.stages.stage import Stage
from dlpipe.pipeline.stages.stream import Stream

STAGES: dict[str, type[Stage]] = {
    "head": Head,
    "resume_decide": ResumeDecide,
    "stream": Stream,
    "finalize": Finalize,
    "index": Index,
    "dedupe": Dedupe,
}

__all__ = ["STAGES", "Stage"]
