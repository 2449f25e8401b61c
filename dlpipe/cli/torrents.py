"""`dlpipe torrents add|list|show|cancel|sync|doctor`: downloads that follow a torrent in qBittorrent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlpipe.cli import EXIT_FAILED, EXIT_OK, output
from dlpipe.cli.jobs import unknown
from dlpipe.core.downloads import DownloadView, Removal
from dlpipe.core.errors import DlpipeError, InvalidInput, TorrentOutage
from dlpipe.core.metainfo import MAX_FILE_BYTES
from dlpipe.core.torrents import DownloadStatus

if TYPE_CHECKING:
    from dlpipe.core.model import Scope
    from dlpipe.pipeline.torrents import TorrentDeps


def _json(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(command)


def _scoped(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--project", "project_id", default="default", show_default=True)(_json(command))
    return click.option("--tenant", "tenant_id", default="default", show_default=True)(command)


@click.group(
    epilog="""\b
Examples:
  dlpipe torrents add 'magnet:?xt=urn:btih:…' --user ann --book 42 --media audiobook
  dlpipe torrents list --state downloading
  dlpipe torrents cancel JOB --removal remove_with_files

\b
qBittorrent is named by DLPIPE_TORRENTS_URL and DLPIPE_TORRENTS_SAVE_PATH; `dlpipe torrents doctor` tries it.
"""
)
def torrents() -> None:
    """Let qBittorrent transfer, and know here what was asked for, where it stands and what came of it."""


@torrents.command(
    epilog="""\b
Examples:
  dlpipe torrents add 'magnet:?xt=urn:btih:…' --user ann --book 42 --media ebook
  dlpipe torrents add https://example.org/a.torrent --user ann --book 42 --media ebook --json
  dlpipe torrents add ./a.torrent --user ann --book 42 --media audiobook

\b
The same user, book and medium again, while the download is active, answers the active one.
Exit status: 0 it is asked for, 1 the ledger did not answer, 2 wrong use, or no qBittorrent is set.
"""
)
@click.argument("source", metavar="MAGNET|URL|FILE")
@click.option("--user", "user_id", required=True, help="Whose it is.")
@click.option("--book", "book_id", required=True, help="Which book it belongs to.")
@click.option("--media", "media_type", required=True, help="Which medium of the book it is, such as audiobook.")
@click.option("--request-id", help="An id of yours, kept with the job.")
@_scoped
def add(source: str, as_json: bool, **fields: Any) -> int:
    """Ask for a torrent; workers hand it to qBittorrent and follow it."""
    from dlpipe.tasks import start_download

    given = {name: value for name, value in fields.items() if value is not None}
    answer = start_download(source=_source(source), **given)
    if as_json:
        output.as_json(asdict(answer))
    else:
        output.say(f"{answer.job_id} {answer.state}" + (" (it is active already)" if answer.outcome == "known" else ""))
        output.say_who_works()
    return EXIT_OK


def _source(text: str) -> str | bytes:
    if text.lower().startswith(("magnet:", "http:", "https:")):
        return text
    try:
        with Path(text).open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"{text} cannot be read ({error.strerror})",
            code="torrent_unreadable",
            hint="Give a magnet link, the URL of a .torrent, or a .torrent file.",
        ) from None


@torrents.command(
    "list",
    epilog="""\b
Examples:
  dlpipe torrents list --state failed
  dlpipe torrents list --limit 1000 --json

\b
Exit status: 0 told, 1 the ledger did not answer, 2 wrong use, or a setting that cannot be.
""",
)
@click.option("--state", type=click.Choice([s.value for s in DownloadStatus]), help="Only downloads that stand so.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--after", metavar="JOB", help="Go on after this job of an earlier page.")
@_scoped
def list_(state: str | None, limit: int, after: str | None, tenant_id: str, project_id: str, as_json: bool) -> int:
    """List downloads, the newest first."""
    from dlpipe import wiring
    from dlpipe.core.model import Scope

    with wiring.database().read() as unit:
        wanted = DownloadStatus(state) if state else None
        found = unit.torrents.list_(Scope(tenant_id, project_id), wanted, limit, after)
    if as_json:
        for view in found:
            output.as_json(_told(view))
        return EXIT_OK
    output.table(
        ["job", "state", "%", "user", "book", "medium", "updated", "what"],
        (
            (v.job_id, v.state, v.progress, v.user_id, v.book_id, v.media_type, output.when(v.updated_at),
             v.error_code or v.source_shown)
            for v in found
        ),
    )  # fmt: skip
    if len(found) == limit:
        output.note(f"there may be more: --after {found[-1].job_id}")
    return EXIT_OK


def _told(view: DownloadView) -> dict[str, Any]:
    told = asdict(view)
    scope = told.pop("scope")
    return {**scope, **told}


@torrents.command(
    epilog="""\b
Examples:
  dlpipe torrents show JOB
  dlpipe torrents show JOB --json

\b
Exit status: 0 told, 1 no such download here, or the ledger did not answer, 2 wrong use, or a setting that cannot be.
"""
)
@click.argument("job_id", metavar="JOB")
@_scoped
def show(job_id: str, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Show all that is known of a download, with its files."""
    from dlpipe import wiring
    from dlpipe.core.model import Scope

    with wiring.database().read() as unit:
        view = unit.torrents.get(Scope(tenant_id, project_id), job_id)
    if view is None:
        return _unknown(job_id, Scope(tenant_id, project_id))
    told = _told(view)
    if as_json:
        output.as_json(told)
        return EXIT_OK
    files = told.pop("files")
    for name, value in told.items():
        if value is not None:
            output.say(f"{name:20} {value}")
    if files:
        output.table(
            ["file", "size", "sha256", "artifact"],
            ((f["path"], output.size(f["byte_size"]), f["sha256"], f["artifact_uuid"]) for f in files),
        )
    return EXIT_OK


@torrents.command(
    epilog="""\b
Examples:
  dlpipe torrents cancel JOB
  dlpipe torrents cancel JOB JOB --removal keep

\b
Exit status: 0 all canceled, 1 something could not be (it had ended, or is unknown), 2 wrong use, or no
qBittorrent is set.
"""
)
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--removal",
    type=click.Choice([r.value for r in Removal]),
    help="What becomes of the torrent; without it the setting torrents.removal decides.",
)
@_scoped
def cancel(job_ids: tuple[str, ...], removal: str | None, tenant_id: str, project_id: str, as_json: bool) -> int:
    """Cancel downloads that are not done yet. A torrent that another download needs stays."""
    from dlpipe.core.model import Scope
    from dlpipe.pipeline import torrents as downloads
    from dlpipe.tasks import torrent_deps

    scope, code = Scope(tenant_id, project_id), EXIT_OK
    for job_id in job_ids:
        state = downloads.cancel(torrent_deps(), scope, job_id, Removal(removal) if removal else None)
        if state is None:
            code = _unknown(job_id, scope)
            continue
        canceled = state is DownloadStatus.CANCELED
        if not canceled:
            code = EXIT_FAILED
        if as_json:
            output.as_json({"job_id": job_id, "state": state.value})
        else:
            output.say(f"{job_id} {state.value}" + ("" if canceled else " (nothing to cancel)"))
    return code


@torrents.command(
    epilog="""\b
Examples:
  dlpipe torrents sync
  dlpipe torrents sync --json

\b
Exit status: 0 qBittorrent answered, 1 it could not be asked, 2 wrong use, or no qBittorrent is set.
"""
)
@_json
def sync(as_json: bool) -> int:
    """Look at qBittorrent now, instead of at the next beat, and do here what is due."""
    from dlpipe.pipeline import torrent_sync
    from dlpipe.tasks import torrent_deps

    deps = torrent_deps()
    done: Counter[str] = Counter()
    outage = _work(deps, done, early=True)
    report = torrent_sync.sync(deps, send=False)
    report.outage = _work(deps, done, early=False) or report.outage or outage
    told = {**asdict(report), "enqueued": done["queued"], "registered": done["downloading"]}
    if as_json:
        output.as_json(told)
    else:
        output.table(["what", "count"], [(name, value) for name, value in told.items() if value])
    return EXIT_FAILED if report.outage else EXIT_OK


_POSTPONED = "postponed: "
_NOT_ASKED = frozenset({f"{_POSTPONED}{TorrentOutage.code}", f"{_POSTPONED}{TorrentOutage.login_refused}"})


def _work(deps: TorrentDeps, done: Counter[str], *, early: bool) -> str | None:
    """Do here what a worker would be told to; the code of the outage that was met, if one was."""
    from dlpipe.pipeline import torrent_files
    from dlpipe.pipeline import torrents as downloads

    outage = None
    for found in downloads.take_due(deps, early=early):
        queued = found.job.status is DownloadStatus.QUEUED
        said = (downloads.enqueue if queued else torrent_files.register)(deps, found.job.job_id)
        output.note(f"{found.job.job_id} {said}")
        if said in _NOT_ASKED:
            outage = said.removeprefix(_POSTPONED)
            continue
        done[found.job.status] += 1
    return outage


@torrents.command(
    epilog="""\b
Examples:
  dlpipe torrents doctor
  dlpipe torrents doctor --json

\b
Exit status: 0 all checks pass, 1 one does not, 2 wrong use, or no qBittorrent is set.
"""
)
@_json
def doctor(as_json: bool) -> int:
    """Try qBittorrent: its address, the login, and whether its download folder is seen from here."""
    from dlpipe.tasks import torrent_deps

    deps = torrent_deps()
    checks = [_checked(name, check) for name, check in (
        ("qbittorrent", lambda: deps.client().version()),
        ("free space", lambda: output.size(deps.client().free_space())),
        ("download folder", lambda: _folder(deps)),
        ("store", lambda: _sharing(deps)),
    )]  # fmt: skip
    if as_json:
        output.as_json({"checks": checks})
    else:
        output.table(["check", "ok", "what"], ((c["check"], c["ok"], c["what"]) for c in checks))
    return EXIT_OK if all(check["ok"] for check in checks) else EXIT_FAILED


def _checked(name: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "what": check()}
    except DlpipeError as error:
        return {"check": name, "ok": False, "what": f"{error.message} [{error.code}] {error.hint}"}


def _folder(deps: TorrentDeps) -> str:
    here = Path(deps.policy.local_path)
    if not here.is_dir():
        raise InvalidInput(
            f"{here} is not a folder on this machine",
            code="local_path_missing",
            hint="Mount the download folder here and name it in torrents.local_path.",
        )
    return str(here)


def _sharing(deps: TorrentDeps) -> str:
    from dlpipe import wiring

    root = wiring.settings().store_root
    at = next(folder for folder in (root, *root.parents) if folder.exists())
    here = Path(deps.policy.local_path)
    same = here.is_dir() and at.stat().st_dev == here.stat().st_dev
    return f"sharing={deps.policy.sharing}; " + (
        "on the file system of the download folder" if same else "on another file system: files are copied"
    )


def _unknown(job_id: str, scope: Scope) -> int:
    return unknown(job_id, scope, what="download", listed_by="dlpipe torrents list")
