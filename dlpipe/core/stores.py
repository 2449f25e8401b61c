"""Is the place where the store should be the store that this ledger knows? (ADR 29)

An empty mount point looks like a store whose files are all lost, and another ledger's store like a strange one; the
number of rows or of missing files says nothing. The store bears an id, and the ledger has it on record.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlpipe.core.errors import Postponed

LOOK_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Known:
    """It bears the id that is on record."""


@dataclass(frozen=True, slots=True)
class Mark:
    """It bears no id yet, and is to get one."""


@dataclass(frozen=True, slots=True)
class Record:
    """The id that it bears is to be put on record."""


@dataclass(frozen=True, slots=True)
class NeedLook:
    """No id is on record: are files there that the ledger knows?"""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing may be written there, nor anything be called lost because it is not there."""

    code: str
    message: str
    hint: str

    def failure(self) -> Postponed:
        return Postponed(self.message, code=self.code, after_s=LOOK_AGAIN_S, hint=self.hint)


_ACCEPT = "If it is the right one all the same, say so: dlpipe reconcile --accept-store."
NOT_MOUNTED = Refused(
    "store_not_mounted",
    "the store's folder does not bear the mark that the ledger knows",
    f"Mount the store, or set DLPIPE_STORE_ROOT to where it is; the work goes on by itself. {_ACCEPT}",
)
FOREIGN = Refused(
    "store_foreign",
    "the store's folder bears the mark of another store than the ledger knows",
    f"Mount the right one, or set DLPIPE_STORE_ROOT to where it is; the work goes on by itself. {_ACCEPT}",
)
DOUBTFUL = Refused(
    "store_doubtful",
    "most of the files that the ledger knows are not in the store's folder, which no ledger has marked as this one's",
    f"Mount the store, or set DLPIPE_STORE_ROOT to where it is; the work goes on by itself. {_ACCEPT}",
)


def recognise(
    recorded: str | None, found: str | None, believed: bool | None = None
) -> Known | Mark | Record | NeedLook | Refused:
    """Decide by the id on record and the one that the store bears.

    `believed`: there are no rows, or files that they name are there; None: nobody has looked.
    """
    if recorded is not None:
        if found is None:
            return NOT_MOUNTED
        return Known() if found == recorded else FOREIGN
    if believed is None:
        return NeedLook()
    if not believed:
        return DOUBTFUL
    return Mark() if found is None else Record()
