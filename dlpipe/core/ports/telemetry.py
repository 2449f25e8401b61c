"""Who counts what happened in this process."""

from __future__ import annotations

from typing import Protocol

from dlpipe.core.events import Event


class Telemetry(Protocol):
    """Told of what the ledger has already taken. It never raises, never waits for anybody, and decides nothing."""

    def tell(self, event: Event) -> None: ...
