"""`dlpipe migrate`, `reconcile` and `doctor`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.core.errors import DlpipeError, LeaseUnavailable


@click.command(
    epilog="""\b
Examples:
  dlpipe migrate
  dlpipe migrate --dry-run
  dlpipe migrate --json

\b
Exit status: 0 this version works with the tables, 1 the database did not answer, 2 wrong use, or the tables are those
of a later release and do not work with this one.
"""
)
@click.option("--dry-run", is_flag=True, help="Say what there is to do, and whether workers have to end for it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def migrate(dry_run: bool, as_json: bool) -> int:
    """Bring the ledger's tables to this version.

    Only ever forwards. On PostgreSQL it waits for no lock longer than a moment, so that others get on, and where
    somebody keeps one it gives up after some tries, to be repeated.

    Workers of the release before go on meanwhile and afterwards, and may be started again, unless a step says that they
    cannot (--dry-run tells): those end before it.
    """
    from dlpipe import wiring
    from dlpipe.db import schema
    from dlpipe.db.migrate import breaking
    from dlpipe.db.migrate import migrate as upgrade

    database = wiring.open_database(wiring.settings())
    breaks = breaking(database)
    if dry_run:
        before, after = database.schema_version(), schema.SCHEMA_VERSION
        if before is not None and before > after:
            database.check_schema()
            after = before
    else:
        before, after = upgrade(database)
    if as_json:
        found = {"before": before, "after": after, "older_workers_go_on": not breaks}
        output.as_json({**found, "dry_run": True} if dry_run else found)
    elif before == after:
        output.say(f"the schema is at {after}; nothing to do")
    else:
        output.say(f"the schema {'would go' if dry_run else 'went'} from {before or 'nothing'} to {after}")
        if breaks:
            must = "have to end before it" if dry_run else "cannot go on with it"
            output.say(f"workers of the release before {must} ({', '.join(breaks)})")
        elif before is not None:
            output.say("workers of the release before go on with it")
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe reconcile
  dlpipe reconcile --dry-run --json

\b
Exit status: 0 the round is done, whatever it found, 1 the ledger did not answer, 2 wrong use, or a setting
that cannot be.
"""
)
@click.option("--dry-run", is_flag=True, help="Say what there is to do, and change nothing.")
@click.option("--accept-store", is_flag=True, help="What is at store.root is the store, whatever it looks like.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(dry_run: bool, accept_store: bool, as_json: bool) -> int:
    """Heal now what crashes left behind, instead of at the next beat.

    One round, bounded as at the beat (heal.* in the settings): it goes on where the round before stopped, and the
    next one goes on where it stops.

    --accept-store is for a store that is refused (store_not_mounted, store_foreign, store_doubtful) and is the right
    one all the same: after a disk was replaced, or files were restored without the hidden ones. Files that are missing
    in it count as lost from then on, and are fetched again.
    """
    if dry_run and accept_store:
        raise click.UsageError("--accept-store changes something, and --dry-run changes nothing")
    from dlpipe.pipeline import stores
    from dlpipe.pipeline.reconcile import reconcile as heal
    from dlpipe.tasks import deps, remembered

    if accept_store:
        output.note(f"the store is accepted (its mark is {stores.accept(deps())})")
    report = heal(deps(), dry_run=dry_run)
    if not dry_run:
        remembered(report)
    if as_json:
        findings = [asdict(finding) for finding in report.findings]
        output.as_json({**report.counts(), "dry_run": dry_run, "findings": findings})
        return EXIT_OK
    output.table(["found", "count"], report.counts().items())
    if report.findings:
        output.say()
        output.table(["found", "which", "what"], ((one.kind, one.what, one.did) for one in report.findings))
    return EXIT_OK


@click.command(
    epilog="""\b
Examples:
  dlpipe doctor
  DLPIPE_HOME=/srv/files dlpipe doctor --json

\b
Exit status: 0 all checks pass, 1 one does not, 2 wrong use, or a setting that cannot be.
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """List all settings with their source, and check what they point to. Secrets are not shown."""
    from dlpipe import wiring

    loaded = wiring.loaded()
    checks = [_checked(name, check) for name, check in (
        ("ledger", _ledger), ("redis", _redis), ("broker", _broker), ("store", _store), ("server program", _program),
    )]  # fmt: skip
    if as_json:
        output.as_json({"settings": [asdict(knob) for knob in loaded.knobs()], "checks": checks})
    else:
        output.table(["setting", "value", "source"], ((k.name, k.value, k.source) for k in loaded.knobs()))
        output.say()
        output.table(["check", "ok", "what"], ((c["check"], c["ok"], c["what"]) for c in checks))
    return EXIT_OK if all(check["ok"] for check in checks) else EXIT_FAILED


def _checked(name: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "what": check()}
    except DlpipeError as error:
        return {"check": name, "ok": False, "what": f"{error.message} [{error.code}] {error.hint}"}
    except OSError as error:
        what = f"{error.strerror or type(error).__name__} [system_error] Look at the path and its permissions."
        return {"check": name, "ok": False, "what": what}
    except Exception as error:
        # The text of a foreign error can hold an address with a password; its kind cannot.
        return {"check": name, "ok": False, "what": f"{type(error).__name__} [error]"}


def _ledger() -> str:
    from dlpipe import wiring

    chosen = wiring.settings()
    if chosen.private_database and not (chosen.home_dir / "ledger.db").exists():
        return f"not made yet; the first fetch or plan makes it at {chosen.home_dir / 'ledger.db'}"
    database = wiring.open_database(chosen)
    database.check_schema()
    return f"{database.url.get_backend_name()}, schema {database.schema_version()}"


def _redis() -> str:
    from redis import RedisError

    from dlpipe import wiring
    from dlpipe.embedded import stack

    chosen = wiring.settings()
    if chosen.private_redis and stack.running(chosen.home_dir) is None:
        return "private; starts with `dlpipe fetch` or `dlpipe up`"
    try:
        wiring.redis_client().ping()
    except RedisError as error:
        raise LeaseUnavailable(f"Redis did not answer ({type(error).__name__})") from None
    return "answers"


def _broker() -> str:
    from dlpipe import wiring
    from dlpipe.embedded import stack

    chosen = wiring.settings()
    if chosen.private_redis and stack.running(chosen.home_dir) is None:
        return "private; starts with `dlpipe fetch` or `dlpipe up`"
    from dlpipe.celery import CeleryPublisher, app

    depths = CeleryPublisher(app).depths()
    return f"answers; {sum(depths.values())} messages wait in {len(depths)} queues"


def _store() -> str:
    from dlpipe import wiring

    chosen = wiring.settings()
    root = chosen.store_root
    at = next(folder for folder in (root, *root.parents) if folder.exists())
    said = f"{root}, {output.size(shutil.disk_usage(at).free)} free"
    if chosen.store.url is None:
        return said
    wiring.blob_store(chosen).walk("", 1)
    return f"{chosen.store.url} answers; parts: {said}"


def _program() -> str:
    from dlpipe import wiring
    from dlpipe.embedded.program import find_server

    return find_server() if wiring.settings().private_redis else "not needed: Redis is elsewhere"
