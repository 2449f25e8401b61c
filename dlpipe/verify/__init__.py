"""An independent checker of ledger and store (OPS-6).

It shares nothing with the pipeline but the tables: the rules are written down here a second time (ADR 22).
It only reads.
"""

from dlpipe.verify.check import (
    Options,
    Silent,
    StoreMissing,
    StoreNotOurs,
    StoreNotSet,
    Watcher,
    artifact_count,
    check,
    schema_version,
)
from dlpipe.verify.findings import FINDINGS, NOTES, Finding
from dlpipe.verify.ledger import DatabaseTrouble
from dlpipe.verify.objects import Objects, ObjectStoreTrouble

__all__ = [
    "FINDINGS",
    "NOTES",
    "DatabaseTrouble",
    "Finding",
    "ObjectStoreTrouble",
    "Objects",
    "Options",
    "Silent",
    "StoreMissing",
    "StoreNotOurs",
    "StoreNotSet",
    "Watcher",
    "artifact_count",
    "check",
    "schema_version",
]
