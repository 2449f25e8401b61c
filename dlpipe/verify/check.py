"""The whole check: rows, files, and rows against files. It reads, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dlpipe.verify import files, jobs, objects, registry, rules, staging
from dlpipe.verify.facts import JobFacts, Snapshot
from dlpipe.verify.findings import Finding
from dlpipe.verify.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Options:
    read_bytes: bool = True
    """Hash every file; otherwise sizes and names have to do."""
    strict: bool = False
    """Nothing is running: work under way, leases and parts are findings, too."""
    file_grace_s: float = files.YOUNG_S
    """Files that no row knows are left alone when younger: to those who work, and to reconcile after them (HEAL-3)."""
    part_age_s: float = staging.YOUNG_S
    """Parts that nobody wants likewise (HEAL-4)."""


class StoreMissing(Exception):
    """There is no folder where the store should be: it is not mounted, rather than all of its files lost."""


class StoreNotSet(Exception):
    """Artifacts are registered in a bucket, and nobody has said which one."""


class StoreNotOurs(Exception):
    """The store's folder does not bear the mark that is on record: another store, or none that is mounted."""


class Watcher(Protocol):
    """Is told how far a check is."""

    def begins(self, what: str, total: int) -> None: ...
    def goes_on(self, count: int) -> None: ...


class Silent:
    def begins(self, what: str, total: int) -> None: ...
    def goes_on(self, count: int) -> None: ...


def schema_version(database_url: str) -> tuple[str | None, str | None]:
    """The revision that the database is at, and the oldest whose code works with it; None where there is none."""
    ledger = Ledger(database_url)
    try:
        return ledger.schema_version()
    finally:
        ledger.close()


def artifact_count(database_url: str) -> int:
    """How many files are registered."""
    ledger = Ledger(database_url)
    try:
        with ledger.snapshot() as now:
            return now.sizes()[1]
    finally:
        ledger.close()


def check(
    database_url: str,
    root: Path,
    options: Options = Options(),
    watcher: Watcher | None = None,
    bucket: objects.Objects | None = None,
) -> Iterator[Finding]:
    """Everything that is wrong, as it is found.

    What looks wrong is looked at a second time, in a fresh snapshot, before it is told: work that goes on
    meanwhile is no fault.

    Raises:
        DatabaseTrouble: the database did not answer.
        StoreMissing: artifacts are registered, and there is no store.
        StoreNotOurs: what is there is not the store that belongs to this database.
        StoreNotSet: artifacts are registered in a bucket, and there is none here.
        ObjectStoreTrouble: the bucket cannot be read.
    """
    ledger = Ledger(database_url)
    try:
        with ledger.snapshot() as now:
            kinds = now.backends() if now.sizes()[1] else set()
            if kinds - {"local", bucket.space if bucket is not None else "local"}:
                raise StoreNotSet
            if "local" in kinds and not root.is_dir():
                raise StoreMissing(root)
            mark = now.store_mark() if "local" in kinds or bucket is None else None
        _recognise(root, mark)
        if bucket is not None:
            bucket.look()
        for finding in _everything(ledger, root, options, watcher or Silent(), bucket):
            _recognise(root, mark)  # it may have gone away since, and nothing in it is missing then
            yield finding
    finally:
        ledger.close()


def _recognise(root: Path, mark: str | None) -> None:
    if mark is not None and mark != files.mark(root):
        raise StoreNotOurs(root)


def _everything(
    ledger: Ledger, root: Path, options: Options, told: Watcher, bucket: objects.Objects | None
) -> Iterator[Finding]:
    with ledger.snapshot() as now:
        count, _, size = now.sizes()
        told.begins("jobs", count)
        for page in now.pages():
            yield from _settled_jobs(ledger, root, options, page, now, bucket)
            told.goes_on(len(page))
        told.begins("indexes", 0)
        yield from _settled(
            lambda: registry.judge(now, root, bucket), lambda fresh: registry.judge(fresh, root, bucket), ledger
        )
    told.begins("files", size if options.read_bytes else count)
    yield from _files(ledger, root, options, told)
    young_s = None if options.strict else options.part_age_s
    if bucket is not None:
        yield from _objects(ledger, bucket, root, options, told)
    with ledger.snapshot() as now:
        yield from _settled(
            lambda: staging.judge(root, now, young_s),
            lambda fresh: staging.judge(root, fresh, young_s),
            ledger,
        )


def _settled(
    first: Callable[[], Iterable[Finding]], again: Callable[[Snapshot], Iterable[Finding]], ledger: Ledger
) -> Iterator[Finding]:
    """What is found twice, the second time by a look that begins after the first has ended."""
    found = list(first())
    if found:
        with ledger.snapshot() as fresh:
            still = set(again(fresh))
        yield from (one for one in found if one in still)


def _settled_jobs(
    ledger: Ledger, root: Path, options: Options, page: list[JobFacts], now: Snapshot, bucket: objects.Objects | None
) -> Iterator[Finding]:
    def there(path: str) -> bool:
        if rules.in_bucket(path):
            return bucket is not None and bucket.size(path) is not None
        return os.path.lexists(os.path.join(root, path))

    def judged(some: list[JobFacts], at: Snapshot) -> Iterator[Finding]:
        view = jobs.View(at.now, options.strict, there)
        for facts in some:
            yield from jobs.judge(facts, view)

    found = {facts.job_id: list(judged([facts], now)) for facts in page}
    suspects = [job_id for job_id, faults in found.items() if faults]
    if suspects:
        with ledger.snapshot() as fresh:
            still = {(one.code, one.subject) for one in judged(fresh.jobs(suspects), fresh)}
        for job_id in suspects:
            yield from (one for one in found[job_id] if (one.code, one.subject) in still)


def _files(ledger: Ledger, root: Path, options: Options, told: Watcher) -> Iterator[Finding]:
    reader = files.Reader(root, told.goes_on) if options.read_bytes else None
    young_s = None if options.strict else options.file_grace_s
    for batch in files.batches(files.walk(root)):
        # The rows are read after the folder: a file that was just named has its row by then, or its job at work.
        with ledger.snapshot() as now:
            found = list(files.judge(root, batch, now, reader, young_s))
        suspects = {one.path for one in found}
        if suspects:
            if reader is not None:
                reader.forget()
            with ledger.snapshot() as fresh:
                again = [one for one in batch if one.path in suspects]
                look = files.judge(root, again, fresh, reader, young_s)
                still = {(one.code, one.path) for one in look}
            yield from (one for one in found if (one.code, one.path) in still)
        if reader is None:
            told.goes_on(len(batch))


def _objects(ledger: Ledger, bucket: objects.Objects, root: Path, options: Options, told: Watcher) -> Iterator[Finding]:
    heard = told.goes_on if options.read_bytes else None

    def judged(batch: list[objects.Found], now: Snapshot) -> list[Finding]:
        look = partial(files.Look, root, now, None, None if options.strict else options.file_grace_s)
        return list(objects.judge(bucket, batch, now, heard, look))

    for batch in bucket.batches():
        # As of files: first the listing, then the rows.
        with ledger.snapshot() as now:
            found = judged(batch, now)
        suspects = {one.path for one in found}
        if suspects:
            with ledger.snapshot() as fresh:
                still = {(one.code, one.path) for one in judged([o for o in batch if o.path in suspects], fresh)}
            yield from (one for one in found if (one.code, one.path) in still)
        if heard is None:
            told.goes_on(len(batch))
