"""How connections to PostgreSQL are kept, and how long anything on them may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

_ENDED_FOR_OTHERS = frozenset({"40001", "40P01"})
"""The SQLSTATEs of failed serialization and of a deadlock."""
_TAKES_NO_WRITES = "25006"
"""The SQLSTATE of a server that is a standby, or became one."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Times in seconds. The pool is that of one process: a prefork child has its own."""

    pool_size: int = 8
    pool_overflow: int = 8
    pool_wait_s: float = 30.0
    recycle_s: float = 1_800.0
    connect_s: float = 10.0
    statement_s: float = 60.0
    lock_s: float = 20.0

    def connect_args(self) -> dict[str, Any]:
        limits = {
            "statement_timeout": _ms(self.statement_s),
            "lock_timeout": _ms(self.lock_s),
            "idle_in_transaction_session_timeout": _ms(self.statement_s),
        }
        return {
            "connect_timeout": max(2, round(self.connect_s)),  # libpq knows none below two seconds
            "application_name": "dlpipe",
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()) + " -c timezone=UTC",
            # A server that is gone for good says nothing: without these an answer would be waited for for hours.
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def leave_standbys(engine: sa.Engine) -> None:
    """After a failover, connections to the server that now only reads are of no use: the pool makes new ones."""

    def seen(context: sa.engine.ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) == _TAKES_NO_WRITES:
            context.is_disconnect = True

    event.listen(engine, "handle_error", seen)


def keep_rows_back(engine: sa.Engine) -> None:
    """An error says what was refused, and not the row: the server's DETAIL repeats it, URLs included (SAFE-2)."""

    def seen(context: sa.engine.ExceptionContext) -> None:
        driver = context.original_exception
        said = getattr(getattr(driver, "diag", None), "message_primary", None)
        if said is None:
            return
        driver.args = (said,)
        if context.sqlalchemy_exception is not None:
            context.sqlalchemy_exception.args = (f"({type(driver).__name__}) {said}",)

    event.listen(engine, "handle_error", seen)


def is_conflict(error: BaseException | None) -> bool:
    """Did the database undo this transaction for the sake of others? By the driver's error."""
    return getattr(error, "sqlstate", None) in _ENDED_FOR_OTHERS
