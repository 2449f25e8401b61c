"""The `dlpipe` command. A subcommand is imported only when it is run, so that help answers at once."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import CompletionItem

from dlpipe import __version__
from dlpipe.cli import output
from dlpipe.core.errors import DlpipeError, InvalidInput, Misconfigured

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
EXITS = {
    EXIT_OK: "all that was asked for is done",
    EXIT_FAILED: "something failed or was refused, is unknown, or a service did not answer; the rest is done",
    EXIT_USAGE: "wrong use, a setting that cannot be, or input that was refused as a whole: nothing has changed",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C; what was done by then stands, and the same command goes on from it",
}
"""What each exit status means, of every command; its own help says what that is in its case."""

COMMANDS = {
    "fetch": ("dlpipe.cli.fetch", "Fetch files now, on this machine, and wait for them."),
    "plan": ("dlpipe.cli.plan", "Write down what to fetch; workers do the rest."),
    "up": ("dlpipe.cli.stack", "Run workers, scheduler and a private Redis here until Ctrl-C."),
    "down": ("dlpipe.cli.stack", "End what `up` or `fetch` runs on this data directory."),
    "status": ("dlpipe.cli.stack", "Say what runs here and how many jobs stand where."),
    "top": ("dlpipe.cli.top", "Watch the running pipeline."),
    "jobs": ("dlpipe.cli.jobs", "List jobs, the newest first."),
    "show": ("dlpipe.cli.jobs", "Show all that is known of a job."),
    "why": ("dlpipe.cli.jobs", "Say why a job is where it is, and what happens next."),
    "ops": ("dlpipe.cli.jobs", "Show the ledger's record of a job, stage by stage."),
    "artifacts": ("dlpipe.cli.artifacts", "List registered files."),
    "open": ("dlpipe.cli.artifacts", "Print where a registered file lies, or its bytes."),
    "export": ("dlpipe.cli.artifacts", "Write down every file with what was measured of it."),
    "cancel": ("dlpipe.cli.wishes", "Cancel jobs that are not done yet."),
    "pause": ("dlpipe.cli.wishes", "Let jobs wait, with the bytes they have."),
    "resume": ("dlpipe.cli.wishes", "Let paused jobs go on."),
    "retry": ("dlpipe.cli.wishes", "Try jobs again that failed for good."),
    "refresh": ("dlpipe.cli.wishes", "Ask whether servers have something newer, and fetch it."),
    "replay": ("dlpipe.cli.wishes", "Do the stages of finished jobs again, without the network."),
    "torrents": ("dlpipe.cli.torrents", "Let qBittorrent transfer torrents, and follow them."),
    "reconcile": ("dlpipe.cli.admin", "Heal now what crashes left behind, instead of at the next beat."),
    "nodes": ("dlpipe.cli.nodes", "List the nodes that have staging folders of their own."),
    "drain": ("dlpipe.cli.nodes", "Let a node take no new jobs, so that it can be taken out."),
    "verify": ("dlpipe.cli.verify", "Check the whole against itself: every file, row and pointer."),
    "metrics": ("dlpipe.cli.metrics", "Print the ledger's figures for Prometheus."),
    "purge": ("dlpipe.cli.purge", "Archive jobs that ended long ago, then delete them."),
    "gc": ("dlpipe.cli.gc", "Find files that nobody wants any more, and collect them when told to."),
    "backfill": ("dlpipe.cli.backfill", "Turn files that were downloaded before into finished jobs."),
    "migrate": ("dlpipe.cli.admin", "Bring the ledger's tables to this version."),
    "doctor": ("dlpipe.cli.admin", "List all settings with their source, and check what they point to."),
    "completion": ("dlpipe.cli.completion", "Print the script that lets a shell complete these commands."),
}

_EPILOG = """\b
Examples:
  dlpipe fetch https://example.org/a.pdf
  dlpipe fetch -i urls.txt --out ./papers --json
  dlpipe plan -i works.csv && dlpipe up
  dlpipe jobs --status failed
  dlpipe plan --help

\b
Exit status: 0 all done, 1 something failed or was refused, 2 wrong use or a setting that cannot be, 130 interrupted
(docs/commands.md).
Settings come from DLPIPE_… variables and dlpipe.toml; `dlpipe doctor` lists them all.
"""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        # A command that is named like a built-in function has an underscore in the code.
        found: click.Command = getattr(module, f"{cmd_name}_" if hasattr(module, f"{cmd_name}_") else cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, n=2)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Without importing them all."""
        found = [CompletionItem(n, help=text) for n, (_, text) in COMMANDS.items() if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dlpipe")
def dlpipe() -> None:
    """From "these URLs belong to these works" to verified, de-duplicated, registered files."""


def main(args: list[str] | None = None) -> None:
    """Run the command; every error of ours is a sentence on what happened and one on what to do."""
    if "_DLPIPE_COMPLETE" in os.environ:
        from dlpipe.cli.completion import answer

        answer(dlpipe)
    try:
        code = dlpipe.main(args=args, prog_name="dlpipe", standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except click.UsageError as error:
        # In one line: click lists choices below each other, and an argument that it repeats can hold line breaks.
        said = " ".join(error.format_message().split())
        output.error(said, "usage_wrong", f"See: {error.ctx.command_path if error.ctx else 'dlpipe'} --help")
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        output.note("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except DlpipeError as error:
        output.error(error.message, error.code, error.hint)
        sys.exit(EXIT_USAGE if isinstance(error, InvalidInput | Misconfigured) else EXIT_FAILED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        output.error(
            f"{error.strerror or type(error).__name__}{where}",
            "system_error",
            "The system refused it: look at the path, its permissions and the room that is left.",
        )
        sys.exit(EXIT_FAILED)
    sys.exit(code if isinstance(code, int) else EXIT_OK)
