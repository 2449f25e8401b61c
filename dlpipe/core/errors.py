"""Every failure that crosses a layer: a stable code, what happened, what to do.

Messages are safe to show and to log: they carry ids, codes and host names, never a URL's query.
"""

from __future__ import annotations

from collections.abc import Collection


class DlpipeError(Exception):
    """Base of all errors of the project."""

    code = "error"
    hint = ""

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class InvalidInput(DlpipeError):
    """The caller's request was refused before anything changed."""

    code = "invalid_input"


class UnknownId(DlpipeError):
    """Nothing of this id is known in the tenant and project that was asked."""

    code = "id_unknown"


class Misconfigured(DlpipeError):
    """A setting, or the place a setting points to, cannot be used."""

    code = "misconfigured"


class LedgerUnavailable(DlpipeError):
    """The database did not answer; nothing was recorded."""

    code = "ledger_unavailable"
    hint = "Check that the database is running and that DLPIPE_DATABASE_URL names it; the work goes on by itself."


class LedgerConflict(LedgerUnavailable):
    """The database undid this transaction for the sake of others, again and again; nothing was recorded."""

    code = "ledger_conflict"
    hint = "Nothing was changed; the work goes on by itself. If it happens often, fewer workers get more done."


class LeaseUnavailable(DlpipeError):
    """Redis did not answer, so nobody can be given a lease."""

    code = "lease_unavailable"
    hint = "Check that Redis is running and that DLPIPE_REDIS_URL names it; the work goes on by itself."


class NotBegun(LeaseUnavailable):
    """This process is told to end, so it begins nothing more: another one does it."""

    code = "not_begun"
    hint = "Nothing was changed; the message went back to its queue."


class BrokerUnavailable(DlpipeError):
    """The broker did not answer. The jobs are on record and are sent when it is back."""

    code = "broker_unavailable"
    hint = "Check that the broker is running and that DLPIPE_BROKER_URL names it; the jobs go out by themselves."


class ResultUnreadable(DlpipeError):
    """A stored result does not have the shape its kind demands."""

    code = "result_unreadable"


class IllegalTransition(DlpipeError):
    """The state table has no such step from where the job is."""

    code = "illegal_transition"

    def __init__(self, job_id: str, wanted: str, allowed: Collection[str], actual: str) -> None:
        self.job_id, self.wanted, self.allowed, self.actual = job_id, wanted, frozenset(allowed), actual
        super().__init__(
            f"job {job_id} cannot become {wanted}: that is allowed only from "
            f"{', '.join(sorted(allowed)) or 'no state'}, and it is {actual}"
        )


class LeaseBusy(DlpipeError):
    """Somebody else holds the job's lease."""

    code = "lease_busy"


class LeaseLost(DlpipeError):
    """The lease or the fence is no longer ours: stop, and record nothing."""

    code = "lease_lost"


class WorkerEnding(LeaseLost):
    """The lease is ours, and this process is told to end: stop, and hand it back. What is done may be recorded."""

    code = "worker_ending"


class Overtaken(LeaseLost):
    """What lies in staging says that a later holder of this job works on it. Only the ledger can tell whether so."""


class StageFailure(DlpipeError):
    """A stage could not do its work; the runner turns this into one guarded write."""


class Retryable(StageFailure):
    """It may work later. `after_s` is what the server asked for, when it asked."""

    def __init__(self, message: str, *, code: str, hint: str = "", after_s: float | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.after_s = after_s


class Postponed(StageFailure):
    """Not our turn yet: handed back until then, and no attempt is used up.

    `anew`: what it waits for was there in this very run, so the wait for it begins now.
    """

    def __init__(self, message: str, *, code: str, after_s: float, hint: str = "", anew: bool = False) -> None:
        super().__init__(message, code=code, hint=hint)
        self.after_s, self.anew = after_s, anew


class Permanent(StageFailure):
    """Trying again cannot help."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)


class TorrentOutage(DlpipeError):
    """The torrent client could not be asked: nobody knows what it has. Never to be read as "not found"."""

    code = "torrent_outage"
    login_refused = "torrent_login_refused"
    """The code of an outage that credentials can end."""
    hint = (
        "Check that qBittorrent is running and that its address and credentials are right; the work goes on by itself."
    )


class TorrentRefused(DlpipeError):
    """The torrent client, or the torrent itself, said no. Asking again with the same cannot help."""

    code = "torrent_refused"
