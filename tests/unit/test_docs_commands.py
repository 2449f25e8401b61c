"""docs/commands.md says what the commands say, and every command says enough (OPS-5)."""

from __future__ import annotations

import re

import click
import pytest

from dlpipe import cli
from ops import docs_commands

LEAVES = {name: (command, command.get_help(context)) for name, command, context in docs_commands.leaves()}


def test_the_page_is_fresh() -> None:
    assert docs_commands.PAGE.read_text(encoding="utf-8") == docs_commands.render(), "run: make docs"


def test_every_command_of_the_table_is_on_the_page() -> None:
    page = docs_commands.PAGE.read_text(encoding="utf-8")
    for name in cli.dlpipe.list_commands(click.Context(cli.dlpipe)):
        assert re.search(rf"^## dlpipe {name}( [a-z]+)?$", page, re.MULTILINE), name
    for code, meaning in cli.EXITS.items():
        assert f"| {code} | {meaning} |" in page


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_a_line_an_example_and_its_exit_status(name: str) -> None:
    command, text = LEAVES[name]
    summary = docs_commands.summary(command)
    assert summary.endswith("."), summary
    assert "\n" not in summary
    examples = text.split("Examples:\n", 1)[1].split("\n\n", 1)[0]
    assert re.search(rf"\bdlpipe {name}\b", examples), f"{name}: no example"
    codes = docs_commands.exits(text)
    assert {0, 2} <= set(codes), f"{name}: its help does not end with 'Exit status: 0 …, 1 …, 2 …'"
    assert set(codes) <= set(cli.EXITS)


WITHOUT_JSON = {
    "export": "its rows are JSON lines already",
    "metrics": "a format of its own, which is all that it is for",
    "completion": "a script for a shell",
}


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_speaks_json_unless_there_is_a_reason(name: str) -> None:
    command, _ = LEAVES[name]
    has = any("--json" in option.opts for option in command.params)
    assert has == (name not in WITHOUT_JSON), name
