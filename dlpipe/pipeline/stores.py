"""Make sure that the store which is there is this ledger's, before anything is written to it or missed in it (ADR 29).

Who works asks at the beginning of each stage, reconcile at the beginning of its walks.
"""

from __future__ import annotations

import logging
import uuid

from dlpipe.core.crash import crash_point
from dlpipe.core.recovery import believable
from dlpipe.core.stores import FOREIGN, Mark, NeedLook, Refused
from dlpipe.core.stores import recognise as judge
from dlpipe.pipeline.deps import Deps

log = logging.getLogger(__name__)

SAMPLE = 500


def recognise(deps: Deps, *, dry_run: bool = False) -> None:
    """Raise Postponed(`store_not_mounted`, `store_foreign`, `store_doubtful`) when it is not.

    A store that nobody has used is marked and put on record, and so is one from before there were marks whose files
    are there. Cheap from the second time on: one small file is read.
    """
    store = deps.store
    found = store.marker()
    if found is not None and deps.known_stores.get(store.backend) == found:
        return
    with deps.database.read() as unit:
        recorded = unit.stores.get(store.backend)
    if found is None:
        found = store.marker()  # looked at before the record, it may have been made and put on record since
    verdict = judge(recorded, found)
    if isinstance(verdict, NeedLook):
        verdict = judge(recorded, found, _holds_what_is_known(deps))
    if isinstance(verdict, Refused):
        log.error("%s [%s] %s", verdict.message, verdict.code, verdict.hint)
        raise verdict.failure()
    if recorded is None:
        if dry_run:
            return
        if isinstance(verdict, Mark) or found is None:
            found = store.mark(str(uuid.uuid4()))
        # The mark lasts before the ledger knows it: after a crash between the two, it is found and recorded.
        crash_point("store.marked")
        with deps.database.write() as unit:
            recorded = unit.stores.add(store.backend, found)
        if recorded != found:  # another worker was first, and what it sees there is not what we see
            raise FOREIGN.failure()
        log.info("the store is marked as this ledger's (%s)", found)
    deps.known_stores[store.backend] = recorded


def recognise_others(deps: Deps) -> None:
    """The same of the stores that keep files from before, as far as they are on record: there, nothing is marked.

    For who looks for missing files. Work goes on without them: a node that came later need not see them.
    """
    for store in deps.store.others():
        with deps.database.read() as unit:
            recorded = unit.stores.get(store.backend)
        verdict = judge(recorded, store.marker()) if recorded is not None else None
        if isinstance(verdict, Refused):
            log.error("%s [%s] %s", verdict.message, verdict.code, verdict.hint)
            raise verdict.failure()


def accept(deps: Deps) -> str:
    """What is there is the store from now on, whatever it bears and whatever is missing in it; answer its id."""
    store = deps.store
    with deps.database.read() as unit:
        recorded = unit.stores.get(store.backend)
    found = store.marker() or store.mark(recorded or str(uuid.uuid4()))
    with deps.database.write() as unit:
        unit.stores.put(store.backend, found)
    deps.known_stores[store.backend] = found
    return found


def _holds_what_is_known(deps: Deps) -> bool:
    """Are there no rows, or at least half of the files that the first of them name?"""
    store = deps.store
    with deps.database.read() as unit:
        rows = unit.registry.artifacts_after("", SAMPLE)
    mine = [row for row in rows if row.storage_backend == store.backend and row.fault is None]
    gone = sum(not store.holds(row.storage_pointer, row.byte_size) for row in mine)
    return believable(len(mine), gone, 0)
