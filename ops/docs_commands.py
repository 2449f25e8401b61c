"""Writes docs/commands.md from the help of every command; `--check` says whether it is fresh."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dlpipe import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
_WIDTH = 110

_INTRO = """\
# The commands

Made by `make docs` from the help of the commands; `--help` on each prints the same. Change the help, not this page.

Results go to standard output: tables on a terminal, lines with tabs when piped, and with `--json` one object a line.
Progress, notes and errors go to standard error. An error is a sentence on what happened, its code in brackets
([all codes](operations.md#error-codes)), and a line on what to do.

## Exit status

The same for every command; what it means in its case stands in its help.
"""


def leaves() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command that does something, with its full name, in the order of the command table."""
    with click.Context(cli.dlpipe, info_name="dlpipe", **_settings(), terminal_width=_WIDTH) as top:
        yield from _under(cli.dlpipe, top, "")


def _settings() -> dict[str, Any]:
    return dict(cli.dlpipe.context_settings)


def _under(
    group: click.Group, context: click.Context, before: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        with click.Context(command, parent=context, info_name=name) as own:
            if isinstance(command, click.Group):
                yield from _under(command, own, f"{before}{name} ")
            else:
                yield f"{before}{name}", command, own


def render() -> str:
    """The whole page."""
    parts = [_INTRO, "| | |\n|---|---|"]
    parts += [f"| {code} | {meaning} |" for code, meaning in cli.EXITS.items()]
    parts.append("\n## All of them\n\n| | |\n|---|---|")
    found = [(name, summary(command), command.get_help(context)) for name, command, context in leaves()]
    parts += [f"| [{name}](#{_anchor(name)}) | {text} |" for name, text, _ in found]
    for name, _, text in found:
        parts.append(f"\n## dlpipe {name}\n\n```text\n{_tidy(text)}\n```")
    return "\n".join(parts) + "\n"


def summary(command: click.Command) -> str:
    """The first sentence of its help."""
    return command.get_short_help_str(limit=200)


def exits(text: str) -> list[int]:
    """The numbers that a command's help tells of under `Exit status:`."""
    told = re.split(r"\n\s*\n", text.partition("Exit status:")[2])[0]
    return [int(number) for number in re.findall(r"(?:^|,)\s+(\d+)\s+[a-z]", told)]


def _anchor(name: str) -> str:
    return f"dlpipe-{name.replace(' ', '-')}"


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


def main() -> int:
    options: Any = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true", help="change nothing; fail when the page is stale")
    check: bool = options.parse_args().check
    page = render()
    fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page
    if check:
        print(f"{PAGE.name} is {'fresh' if fresh else 'stale; run: make docs'}")
        return 0 if fresh else 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.name} {'was fresh' if fresh else 'is written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
