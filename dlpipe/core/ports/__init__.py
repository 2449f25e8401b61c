"""What the pipeline needs from the outside, as small protocols; each docstring is the contract.

One contract suite in tests/contract/ runs on every adapter and fake of a port.
"""

from dlpipe.core.ports.blobs import Adopted, BlobStore, Foreign, Part, Staged, Staging, StoredFile
from dlpipe.core.ports.jobs import Backlog, Claim, Claimed, Held, Hint, Jobs, Owned, Past, Refused
from dlpipe.core.ports.leases import Lease, Leases, Progress, Publisher, Queued, Reservations, Watch
from dlpipe.core.ports.ledger import (
    Cursors,
    Database,
    Ending,
    Endings,
    Figures,
    FirstCopy,
    Glance,
    Joined,
    Known,
    KnownBlob,
    Ledger,
    Nodes,
    Onward,
    Registration,
    Registry,
    StartedOp,
    Stores,
    Unit,
)
from dlpipe.core.ports.sources import Answer, Flips, Source, TorrentClient
from dlpipe.core.ports.telemetry import Telemetry

__all__ = [
    "Adopted",
    "Answer",
    "Backlog",
    "BlobStore",
    "Claim",
    "Claimed",
    "Cursors",
    "Database",
    "Ending",
    "Endings",
    "Figures",
    "FirstCopy",
    "Flips",
    "Foreign",
    "Glance",
    "Held",
    "Hint",
    "Jobs",
    "Joined",
    "Known",
    "KnownBlob",
    "Lease",
    "Leases",
    "Ledger",
    "Nodes",
    "Onward",
    "Owned",
    "Part",
    "Past",
    "Progress",
    "Publisher",
    "Queued",
    "Refused",
    "Registration",
    "Registry",
    "Reservations",
    "Source",
    "Staged",
    "Staging",
    "StartedOp",
    "StoredFile",
    "Stores",
    "Telemetry",
    "TorrentClient",
    "Unit",
    "Watch",
]
