"""One round of following: what the torrent client says of the downloads that were not looked at for longest.

One request for all of them, a pure decision for each, and a compare-and-set for each that changes (TORRENT-4).
Two rounds at once do no harm: who comes second with an older row changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import QBITTORRENT, Followed, Look, Trouble
from dlpipe.core.errors import TorrentOutage
from dlpipe.core.torrents import (
    Begin,
    Change,
    Complete,
    Fail,
    FoundAgain,
    NotFoundSince,
    Nothing,
    Stalled,
    Torrent,
    UnknownState,
    applied,
    decide,
    watch,
)
from dlpipe.pipeline.torrents import TorrentDeps, remove_canceled, send_due

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SyncReport:
    """What one round saw and did."""

    checked: int = 0
    begun: int = 0
    complete: int = 0
    """Torrents that are complete, and whose files are being registered."""
    failed: int = 0
    missing: int = 0
    found_again: int = 0
    stalled: int = 0
    overtaken: int = 0
    """Jobs that somebody else changed meanwhile; the next round looks again."""
    sent: int = 0
    removed: int = 0
    unknown_states: dict[str, int] = field(default_factory=dict)
    outage: str | None = None
    clocks_cleared: bool = False

    def __str__(self) -> str:
        told = {name: getattr(self, name) for name in self.__slots__}
        return " ".join(f"{name}={value}" for name, value in told.items() if value) or "nothing to do"


def sync(deps: TorrentDeps, at: datetime | None = None, *, send: bool = True) -> SyncReport:
    """One round. `at`: the time to go by, else the database's. `send` off: the caller does what is due himself."""
    report = SyncReport()
    with deps.base.database.read() as unit:
        now = at or unit.torrents.clock()
        jobs = unit.torrents.to_check(deps.policy.batch)
    try:
        if jobs:
            _follow(deps, jobs, now, report)
        report.removed = remove_canceled(deps)
    except TorrentOutage as error:
        report.outage = error.code
        log.warning("torrents: no job changes, as the client cannot be asked: %s", error)
        with deps.base.database.write() as unit:
            unit.torrents.outage(QBITTORRENT, now)
    if send:
        report.sent = send_due(deps, now)
    return report


def _follow(deps: TorrentDeps, jobs: list[Followed], now: datetime, report: SyncReport) -> None:
    names = {one.job.external_job_id for one in jobs if one.job.external_job_id is not None}
    found = deps.client().torrents(names)
    crash_point("torrents.looked")
    with deps.base.database.write() as unit:
        report.clocks_cleared = unit.torrents.answered(QBITTORRENT, now, deps.policy.gap_s)
        if report.clocks_cleared:
            jobs = unit.torrents.again([one.job.job_id for one in jobs])
    looks = [_look(deps, one, found, now, report) for one in jobs]
    with deps.base.database.write() as unit:
        unit.torrents.mark_checked(looks, now)
    report.checked = len(jobs)


def _look(deps: TorrentDeps, one: Followed, found: Mapping[str, Torrent], now: datetime, report: SyncReport) -> Look:
    job = one.job
    observed = found.get(job.external_job_id or "")
    movement = watch(one.movement, observed, now)
    changes = decide(job, observed, outage=False, now=now, policy=deps.policy.watch, movement=movement)
    if _write(deps, one, changes, now):
        _count(report, job.job_id, changes)
    else:
        report.overtaken += 1
    if observed is None:
        return Look(job.job_id, None, None, one.movement)
    # 100 is for what is registered: until then there is something left to do.
    percent = min(99, int(observed.progress * 100))
    return Look(job.job_id, percent, observed.size or None, movement)


def _write(deps: TorrentDeps, one: Followed, changes: Sequence[Change], now: datetime) -> bool:
    """All changes of one job in one transaction, each step recorded; False when somebody was faster."""
    writing = [change for change in changes if not isinstance(change, Nothing | UnknownState | Stalled)]
    if not writing:
        return True
    before = one.job
    with deps.base.database.write() as unit:
        for change in writing:
            if isinstance(change, Complete):
                # Registering the files takes long and is a worker's; the step is recorded with what it brings.
                unit.torrents.hand_over(before.job_id, now)
                continue
            after = applied(before, change, now)
            trouble = Trouble(change.code, change.message, deps.base.debug_id()) if isinstance(change, Fail) else None
            if not unit.torrents.change(before, after, trouble):
                unit.rollback()
                return False
            before = replace(after)
        crash_point("torrents.changing")
    return True


def _count(report: SyncReport, job_id: str, changes: Sequence[Change]) -> None:
    for change in changes:
        match change:
            case Begin():
                report.begun += 1
            case Complete():
                report.complete += 1
            case NotFoundSince():
                report.missing += 1
            case FoundAgain():
                report.found_again += 1
            case Fail(code=code):
                report.failed += 1
                log.warning("job=%s failed code=%s", job_id, code)
            case Stalled(since=since):
                report.stalled += 1
                log.info("job=%s no byte since %s", job_id, since.isoformat())
            case UnknownState(name=name):
                safe = name[:64].encode("unicode_escape").decode()
                report.unknown_states = dict(Counter(report.unknown_states) + Counter({safe: 1}))
                log.warning("job=%s the torrent client says a state that we do not know: %s", job_id, safe)
            case _:
                pass
