"""`python -m dlpipe.cli.ready HOME`: the ready process of `dlpipe up` (ADR 40), which has all imports behind it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from dlpipe.cli import COMMANDS, main
from dlpipe.embedded.ready import serve

_LATER = (
    "celery.app.amqp", "celery.app.builtins", "celery.app.control", "celery.app.log", "celery.app.task",
    "celery.backends.base", "celery.canvas", "celery.concurrency", "celery.events.receiver", "celery.fixups.django",
    "celery.loaders.app", "celery.result", "celery.worker.control", "dlpipe.cli.planning", "dlpipe.cli.progress",
    "dlpipe.db.migrate", "dlpipe.defaults", "dlpipe.inbox.consumer", "dlpipe.inbox.control", "dlpipe.net.client",
    "dlpipe.net.flips", "dlpipe.net.limits", "dlpipe.net.line", "dlpipe.pipeline.reconcile", "dlpipe.pipeline.runner",
    "dlpipe.pipeline.torrent_files", "dlpipe.pipeline.torrent_sync", "dlpipe.pipeline.wishes", "dlpipe.sources.http",
    "dlpipe.store", "dlpipe.wiring", "kombu.transport.redis", "rich.console", "rich.progress",
    "sqlalchemy.dialects.sqlite",
)  # fmt: skip
"""What commands import when they need it. Not the Celery app, nor its tasks: they are made from settings."""


def load(*, commands: bool = True) -> None:
    """All that commands and workers import; without the commands, what they have in common."""
    for name in (*dict.fromkeys(module for module, _ in COMMANDS.values() if commands), *_LATER):
        import_module(name)


if __name__ == "__main__":
    load()
    serve(Path(sys.argv[1]), main)
