"""Why a job is where it is, and what happens next: one paragraph, from what is on record. Pure.

It tells and decides nothing. What it says of the future is what dispatch, the stages and reconcile do by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from dlpipe.core import waits
from dlpipe.core.model import JobView
from dlpipe.core.nodes import Stand
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import Purpose, Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.core.waits import Waited


class Situation(StrEnum):
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELED = "canceled"
    PAUSED = "paused"
    RUNNING = "running"
    HOLDER_GONE = "holder_gone"
    NOT_BEFORE = "not_before"
    POSTPONED = "postponed"
    WAITS_FOR_RETRY = "waits_for_retry"
    HOST_FULL = "host_full"
    WINDOW_FULL = "window_full"
    DUE = "due"
    SENT = "sent"
    MESSAGE_LATE = "message_late"
    NEXT_STAGE = "next_stage"
    NODE_SILENT = "node_silent"
    ADRIFT = "adrift"
    TORRENT_QUEUED = "torrent_queued"
    TORRENT_RUNNING = "torrent_running"


@dataclass(frozen=True, slots=True)
class Standing:
    """A job and what its row says beside what its owner sees; `at` is the database's time."""

    view: JobView
    at: datetime
    published_at: datetime | None = None
    lease_until: datetime | None = None
    waited: Waited = Waited()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else bears on it: the bounds that hold, who fills them, and how far the bytes are."""

    retry: RetryPolicy = RetryPolicy()
    lost_after_s: float = 20.0
    host_full: bool = False
    window_full: bool = False
    done_bytes: int | None = None
    total_bytes: int | None = None
    origin: str = ""
    """What shares limits and a circuit with it."""
    node: Stand | None = None
    """Of the node where its part is, if it has one."""
    idle: bool = False
    """Neither workers nor a scheduler run, and none can but those that `dlpipe up` or `dlpipe fetch` start."""


@dataclass(frozen=True, slots=True)
class Why:
    situation: Situation
    what: str
    next: str
    code: str | None = None
    """What it waits for, as an error code, if a try was put off or failed."""
    origin: str | None = None
    """The scheme, host and port that it is about to ask."""
    until: datetime | None = None

    @property
    def text(self) -> str:
        return f"{self.what} {self.next}"


POSTPONED = {
    "retry_after": "{host} answers that it is too busy for this address; its other files go on",
    "host_busy": "{host} has as many requests as it is meant to have at a time",
    "host_cooling_down": "{host} answers for several addresses that it is too busy, and is left alone",
    "host_circuit_open": "{host} has failed again and again, and is tried by one request at a time",
    "quota_exceeded": "the store's volume has too little room for it beside the downloads under way",
    "no_space": "the disk was full",
    "staging_blocked": "something else stood where the folder for its part belongs",
    "store_not_mounted": "the store was not there",
    "store_foreign": "another store was where this one should be",
    "store_doubtful": "the store was not there",
    "store_unreachable": "the object store did not answer",
    "store_busy": "the object store was too busy",
    "store_clock": "the clocks of the object store and of the worker differed too much",
    "store_credentials": "there were no credentials for the object store",
    "part_busy": "another job is fetching the same address",
    "node_takes_none": "no node takes jobs at the moment",
}
"""The reasons for which a job is handed back without using up an attempt."""

_PURPOSE = {
    None: "",
    Purpose.REFRESH: " It has its file, and is to ask the server whether there is a newer one.",
    Purpose.REPAIR: " Its file was found missing or damaged, and is to be brought again.",
    Purpose.REPLAY: " It has its file, and its stages are to be done again from the stored bytes, without the network.",
}


def explain(standing: Standing, around: Surroundings) -> Why:
    """Say in one paragraph where the job is, why, and what will happen next."""
    view = standing.view
    match view.status:
        case Status.COMPLETED:
            had = f"Its file is registered as {_artifacts(view)}.{_taken_back(view)}"
            return Why(Situation.COMPLETED, f"The job is done since {_time(view.completed_at)}. {had}", _REFRESH)
        case Status.SKIPPED:
            had = f"The address was known, so {_artifacts(view)} was linked without fetching it again."
            return Why(Situation.SKIPPED, had + _taken_back(view), _REFRESH)
        case Status.FAILED:
            what = f"The job failed for good on {_time(view.failed_at)}: {_error(view)}."
            if isinstance(view.state, DownloadStatus):
                return Why(Situation.FAILED, what, "Nothing more happens by itself; start the download again to try.")
            wish = f"dlpipe retry {view.job_id} tries it again, with all its attempts."
            return Why(Situation.FAILED, what, f"Nothing more happens by itself; {wish}")
        case Status.CANCELED:
            again = "Plan it under another artifact id to fetch it after all."
            return Why(Situation.CANCELED, f"The job was canceled on {_time(view.updated_at)}.", again)
        case Status.PENDING | Status.PROCESSING:
            if isinstance(view.state, DownloadStatus):
                return _torrent(view)
            return _going(standing, around)


_IDLE = "Nothing runs here now, so nothing happens until dlpipe up, or a dlpipe fetch, starts workers and a scheduler."
_REFRESH = "Nothing more happens by itself; dlpipe refresh asks the server whether it has something newer."


def _taken_back(view: JobView) -> str:
    if view.withdrawn_run is None or view.withdrawn_run != view.run:
        return ""
    again = f"A further run of it (run {view.run}) was canceled on {_time(view.updated_at)}"
    return f" {again}, which changed nothing of this."


def _going(standing: Standing, around: Surroundings) -> Why:
    view = standing.view
    aim = _PURPOSE[view.purpose]
    if view.paused_at is not None:
        what = f"The job is paused since {_time(view.paused_at)} and keeps the bytes that it has.{aim}"
        return Why(Situation.PAUSED, what, f"Nothing happens until dlpipe resume {view.job_id}; no attempt is used up.")
    why = _wanted(standing, around, aim)
    return replace(why, next=_IDLE) if around.idle else why


def _wanted(standing: Standing, around: Surroundings, aim: str) -> Why:
    view, at = standing.view, standing.at
    if standing.lease_until is not None:
        return _held(standing, around, aim)
    if view.due_at is not None and view.due_at > at:
        return _waits(standing, around, aim)
    sent_s = None if standing.published_at is None else (at - standing.published_at).total_seconds()
    if sent_s is not None and view.due_at is None and around.node in (Stand.SILENT, Stand.GONE):
        what = f"Run {view.run} has come as far as {view.state}, and the node that has its bytes is not heard.{aim}"
        return Why(Situation.NODE_SILENT, what, _NODE_SILENT.format(_span(around.retry.postpone_max_s)))
    if sent_s is not None and sent_s > around.lost_after_s:
        what = f"The job's message was sent {_span(sent_s)} ago and no worker has taken it: {_NO_WORKER}.{aim}"
        return Why(Situation.MESSAGE_LATE, what, "If the broker has lost it, reconcile sends it again by itself.")
    if view.due_at is None:
        if sent_s is None:
            what = f"The job is in the middle of run {view.run}, held by nobody, and no message is on its way."
            return Why(Situation.ADRIFT, what, "That should not be: dlpipe ops tells its history.")
        what = f"Run {view.run} has come as far as {view.state}, and the next stage waits for a free worker.{aim}"
        return Why(Situation.NEXT_STAGE, what, "A worker takes it as soon as one is free.")
    if sent_s is not None:
        what = f"The job was sent {_span(sent_s)} ago and waits for a free worker.{aim}"
        return Why(Situation.SENT, what, "A worker takes it as soon as one is free.")
    if around.host_full:
        what = f"The job is due, and {view.host} has its share of the jobs that may be under way.{aim}"
        return Why(Situation.HOST_FULL, what, "It is sent when another job on this host is done.")
    if around.window_full:
        what = f"The job is due, and as many jobs as may be under way are.{aim}"
        return Why(Situation.WINDOW_FULL, what, "It is sent when others are done, those of higher priority first.")
    return Why(Situation.DUE, f"The job is due and not sent yet.{aim}", "The next dispatch sends it, within seconds.")


_NODE_SILENT = (
    "It goes on when that node is back, or begins afresh elsewhere once it is taken for gone, after {} of silence at "
    "the latest, and another one takes jobs (dlpipe nodes); dlpipe drain --now does not wait for that."
)
_NO_WORKER = "all of them are at work, or none runs (dlpipe status)"


def _held(standing: Standing, around: Surroundings, aim: str) -> Why:
    view = standing.view
    left_s = (standing.lease_until - standing.at).total_seconds() if standing.lease_until else 0.0
    if around.idle:
        what = f"The worker that had the job in run {view.run}, at {view.state}, is gone.{aim}"
        return Why(Situation.HOLDER_GONE, what, _IDLE)
    if left_s <= 0:
        silent = f"has given no sign for {_span(-left_s)}"
        what = f"The worker that had the job in run {view.run}, at {view.state}, {silent}.{aim}"
        used_up = view.attempts + 1 >= around.retry.max_attempts
        last = "its attempts are used up then" if used_up else "its next run goes on from the bytes that are there"
        return Why(Situation.HOLDER_GONE, what, f"Reconcile takes it back when Redis has forgotten him, too; {last}.")
    done = ""
    if around.done_bytes is not None:
        done = f", {around.done_bytes:,} bytes so far"
        if around.total_bytes:
            share = 100 * around.done_bytes // around.total_bytes
            done = f", {around.done_bytes:,} of {around.total_bytes:,} bytes ({share} %) so far"
    what = f"A worker has the job in run {view.run}, at {view.state}{done}.{aim}"
    return Why(Situation.RUNNING, what, "When this stage is recorded the next one follows; nothing is to be done.")


def _waits(standing: Standing, around: Surroundings, aim: str) -> Why:
    view = standing.view
    put_off = _put_off(standing, around, aim)
    return replace(put_off, code=view.error_code, origin=around.origin or None, until=view.due_at)


def _put_off(standing: Standing, around: Surroundings, aim: str) -> Why:
    view = standing.view
    when = _time(view.due_at)
    if view.error_code is None:
        what = f"The job is not to begin before {when}.{aim}"
        return Why(Situation.NOT_BEFORE, what, "It is sent then by itself.")
    if view.error_code in POSTPONED:
        reason = POSTPONED[view.error_code].format(host=around.origin or view.host)
        what = f"The job was put off until {when}, because {reason} [{view.error_code}].{aim}"
        left_s = waits.left_s(view.error_code, standing.waited, around.retry)
        last = _time(standing.at + timedelta(seconds=max(0.0, left_s)))
        end = f"should it have to wait on after {last}, it has failed [{waits.final_code(view.error_code)}]"
        asked = view.error_code in waits.ASKED_BY_SERVERS
        longer = " If the answer is the same then, the next wait is longer." if asked else ""
        ahead = f"It is sent then by itself, and no attempt was used up; {end}.{longer}"
        return Why(Situation.POSTPONED, what, ahead)
    attempts = around.retry.max_attempts
    what = f"Attempt {view.attempts} of {attempts} failed: {_error(view)}. The next one is due on {when}.{aim}"
    left = attempts - view.attempts
    last = "it is the last one" if left <= 1 else f"{left} are left"
    return Why(Situation.WAITS_FOR_RETRY, what, f"It is sent then by itself, and goes on from the bytes there; {last}.")


def _torrent(view: JobView) -> Why:
    trouble = f" The last try: {_error(view)}." if view.error_code else ""
    if view.state is DownloadStatus.QUEUED:
        what = f"The download waits to be handed to qBittorrent.{trouble}"
        return Why(Situation.TORRENT_QUEUED, what, "A worker does that, and tries again while qBittorrent is away.")
    what = f"qBittorrent has the torrent, and {view.progress} % of it.{trouble}"
    return Why(
        Situation.TORRENT_RUNNING, what, "It is looked at regularly, and its files are registered when it is complete."
    )


def _error(view: JobView) -> str:
    debug = f" (debug id {view.error_debug_id})" if view.error_debug_id else ""
    return f"{view.error_message_safe or 'no reason is on record'} [{view.error_code or 'error'}]{debug}"


def _artifacts(view: JobView) -> str:
    match view.artifacts:
        case ():
            return "no artifact"
        case (only,):
            return f"artifact {only}"
        case many:
            return f"{len(many)} artifacts, the newest {many[-1]}"


def _time(moment: datetime | None) -> str:
    return "an unknown date" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
