"""What an owner is told of bytes that his file shares: as if no other tenant had a store here (DEDUPE-2)."""

from __future__ import annotations

from dlpipe.core.ports import FirstCopy
from dlpipe.pipeline.deps import Deps


def only_others(deps: Deps, tenant_id: str, first: FirstCopy, sha256: str, besides: str | None = None) -> bool:
    """Is the copy that a file shares another tenant's, and has this one no other file of these bytes?

    Where it has one, that alone would account for it: to be silent then would tell as well.
    """
    if deps.store.place_at(first.pointer).tenant == tenant_id:
        return False
    with deps.database.read() as unit:
        return not unit.registry.has_bytes(tenant_id, sha256, besides)
