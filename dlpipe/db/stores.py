"""Which store belongs to this ledger: the id that its marker holds, one row per backend."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.db.clock import now
from dlpipe.db.schema import stores

_S = stores.c


class SqlStores:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def get(self, backend: str) -> str | None:
        return self._connection.scalar(sa.select(_S.store_id).where(_S.backend == backend))

    def add(self, backend: str, store_id: str) -> str:
        make = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        values = {"backend": backend, "store_id": store_id, "recorded_at": now()}
        self._connection.execute(make(stores).values(**values).on_conflict_do_nothing())
        return self.get(backend) or store_id

    def put(self, backend: str, store_id: str) -> None:
        self._connection.execute(sa.delete(stores).where(_S.backend == backend))
        self.add(backend, store_id)
