"""`dlpipe verify`: what the independent checker says, for people and programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.core.errors import LedgerUnavailable, Misconfigured
from dlpipe.verify import (
    DatabaseTrouble,
    Finding,
    Objects,
    ObjectStoreTrouble,
    Options,
    Silent,
    StoreMissing,
    StoreNotOurs,
    StoreNotSet,
    Watcher,
    artifact_count,
    check,
    schema_version,
)

if TYPE_CHECKING:
    from dlpipe.settings import Settings


@click.command(
    epilog="""\b
Examples:
  dlpipe verify
  dlpipe verify --no-hash
  dlpipe verify --strict --json > findings.jsonl
  dlpipe verify --repair

\b
Exit status: 0 nothing is wrong, 1 something is, 2 wrong use or a setting that cannot be, 130 interrupted.
The codes are explained in docs/operations.md.
"""
)
@click.option("--no-hash", is_flag=True, help="Read no file: names, sizes and rows only.")
@click.option("--strict", is_flag=True, help="Nothing is running: jobs under way, leases and parts are wrong, too.")
@click.option("--repair", is_flag=True, help="Then fetch lost and damaged files again, and reconcile.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def verify(no_hash: bool, strict: bool, repair: bool, as_json: bool) -> int:
    """Check the whole against itself, independently of what did the work.

    Every artifact's bytes are hashed; files, rows, recorded ops, states and pointers are matched with each other.
    It may run while work goes on. Without --repair it changes nothing; with it, the jobs of files that are gone or
    damaged become due again, and a reconcile follows. Workers do the rest; then check again.
    """
    wrong, notes = 0, 0
    accused: list[tuple[str, str]] = []
    for finding in _found(read_bytes=not no_hash, strict=strict):
        wrong, notes = wrong + (not finding.is_note), notes + finding.is_note
        if finding.code in _BROUGHT_AGAIN and finding.job_id and finding.path:
            accused.append((finding.job_id, finding.path if ":" in finding.path else f"local:{finding.path}"))
        if as_json:
            output.as_json(_told(finding))
        else:
            output.say(f"note: {finding}" if finding.is_note else str(finding))
    output.note(f"{wrong or 'nothing'} wrong" + (f", {notes} notes" if notes else ""))
    if repair:
        _repair(accused, as_json)
    return EXIT_FAILED if wrong else EXIT_OK


_BROUGHT_AGAIN = frozenset({"file_missing", "file_size", "file_damaged"})


def _repair(accused: list[tuple[str, str]], as_json: bool) -> None:
    """Through the ordinary machinery: the checker itself writes nothing."""
    from dlpipe import wiring
    from dlpipe.pipeline import repair
    from dlpipe.tasks import deps

    done = repair.bring_again(
        deps(), [repair.Accused(*one) for one in accused], artifact_count(wiring.settings().database_uri)
    )
    if done.refused:
        raise Misconfigured(
            f"{len(accused)} files are missing or damaged, most of all there are; nothing was changed",
            code="store_doubtful",
            hint="Is the right store mounted? If they are lost indeed, raise DLPIPE_HEAL_MAX_MISSING and repeat.",
        )
    repair.rounds(deps())
    if as_json:
        output.as_json({"repair": asdict(done)})
    else:
        output.note(
            f"repair: {done.jobs_reopened} jobs are due again, {done.left_alone} files were left as they are, and "
            "reconcile has run. When workers have done the rest, check again."
        )


def _told(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "subject": finding.subject,
        "sentence": finding.sentence,
        "detail": finding.detail,
        "job_id": finding.job_id,
        "path": finding.path,
        "note": finding.is_note,
    }


def _found(*, read_bytes: bool, strict: bool) -> Iterator[Finding]:
    from dlpipe import wiring
    from dlpipe.db import history

    chosen = wiring.settings()
    options = Options(read_bytes, strict, chosen.heal.file_grace_s, chosen.heal.part_age_s)
    try:
        history.check(*schema_version(chosen.database_uri))
        with _watching() as watcher:
            yield from check(chosen.database_uri, chosen.store_root, options, watcher, _bucket(chosen))
    except DatabaseTrouble as trouble:
        raise LedgerUnavailable(str(trouble)) from trouble
    except ObjectStoreTrouble as trouble:
        raise Misconfigured(
            f"the bucket cannot be read ({trouble})",
            code="store_unreadable",
            hint="Look at store.url, store.endpoint and the credentials, and whether the server is there.",
        ) from None
    except StoreNotSet:
        raise Misconfigured(
            "the ledger knows files in a bucket, and store.url names none",
            code="store_missing",
            hint="Set DLPIPE_STORE_URL to the bucket that they are in.",
        ) from None
    except StoreMissing:
        raise Misconfigured(
            f"the ledger knows files, and the store's folder {chosen.store_root} is not there",
            code="store_missing",
            hint="Mount it, or set DLPIPE_STORE_ROOT to where the files are.",
        ) from None
    except StoreNotOurs:
        raise Misconfigured(
            f"what is at {chosen.store_root} does not bear the mark of the store that the ledger knows",
            code="store_not_mounted",
            hint="Mount the store, or set DLPIPE_STORE_ROOT to where it is. If it is the right one all the same: "
            "dlpipe reconcile --accept-store.",
        ) from None


def _bucket(chosen: Settings) -> Objects | None:
    from dlpipe.settings import bucket_options

    if chosen.store.url is None:
        return None
    return Objects(
        chosen.store.url,
        bucket_options(chosen),
        allow_http=chosen.store.allow_http,
        timeout_s=chosen.store.timeout_s,
        retries=chosen.store.retries,
    )


@contextmanager
def _watching() -> Iterator[Watcher]:
    if not output.live(sys.stderr):
        yield Silent()
        return
    with _Bar() as bar:
        yield bar


class _Bar:
    """One bar for what is being checked just now."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("checking {task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._row: Any = None

    def __enter__(self) -> _Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begins(self, what: str, total: int) -> None:
        if self._row is not None:
            self._bars.remove_task(self._row)
        self._row = self._bars.add_task(what, total=total or None)

    def goes_on(self, count: int) -> None:
        self._bars.advance(self._row, count)
