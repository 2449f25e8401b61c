"""What is written for people agrees with the code: the drawn page, the settings, the codes, the commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dlpipe import cli, settings, verify
from dlpipe.telemetry import series
from ops import docs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

_FENCED = re.compile(r"^```([a-z]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
# Neither `from dlpipe import …` nor `celery -A dlpipe …` is a call of ours.
_CALL = re.compile(r"(?:^|[\s/;&|])(?<!from )(?<!-A )dlpipe ((?:--?|[a-z])[^|&;#\n]*)", re.MULTILINE)
_PUT_IN = re.compile(r"\$\(([^)]*)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_state_machine_page_is_fresh() -> None:
    assert docs.PAGE.read_text(encoding="utf-8") == docs.render(), "run: make docs"


def test_every_adr_is_in_the_index_once_in_its_turn_and_with_its_title() -> None:
    wanted = []
    for record in sorted((DOCS / "adr").glob("[0-9]*.md")):
        number, title = record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").split(": ", 1)
        assert record.name.startswith(number)
        wanted.append(f"| {number} | [{title}]({record.name}) ")
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in index if re.match(r"\| \d{4} \|", line)]
    assert [row.rsplit("| ", 1)[0] for row in rows] == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    targets = [link for link in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))) if link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_tests_named_in_the_docs_exist() -> None:
    named = {found for page in PAGES for found in _TEST.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 30
    gone = [f"{file}::{name}" for file, name in sorted(named) if f"\ndef {name}(" not in _source(file)]
    assert gone == []


def _source(file: str) -> str:
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.exists() else ""


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def _calls(page: Path) -> Iterator[list[str]]:
    """Each `dlpipe …` that a page shows as code, in words."""
    text = page.read_text(encoding="utf-8")
    shown = [code for language, code in _FENCED.findall(text) if language != "python"]
    for code in [*shown, *_INLINE.findall(_FENCED.sub("", text))]:
        # What is put in by $(…) is a call of its own.
        for call in _CALL.findall(_PUT_IN.sub(r"JOB\n\1\n", code)):
            yield shlex.split(call.replace("…", ""), comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named_in_the_docs_exist_with_their_options(page: Path) -> None:
    with click.Context(cli.dlpipe) as context:
        for words in _calls(page):
            name, *rest = words
            if name in ("--help", "--version"):
                continue
            command = cli.dlpipe.get_command(context, name)
            if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                name, *rest = rest
                command = command.get_command(context, name)
            assert command is not None, f"{page.name}: dlpipe {name}"
            known = {spelling for option in command.params for spelling in option.opts} | {"--help"}
            assert {word for word in rest if word.startswith("-") and word != "-"} <= known, f"{page.name}: {words}"


def test_readme_lists_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = cli.dlpipe.list_commands(click.Context(cli.dlpipe))
    assert re.findall(r"^\| `dlpipe ([a-z]+)", readme, re.MULTILINE) == commands


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def test_settings_table_has_every_setting_with_its_variable_and_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no dlpipe.toml
    table = dict(
        re.findall(
            r"^\| `([a-z_.]+)` \| (`DLPIPE_[A-Z0-9_]+` \| (?:`[^`]*`|the host's name)) \|", OPERATIONS, re.MULTILINE
        )
    )
    knobs = {knob.name: knob for knob in settings.load({}).knobs()}
    expected = {
        name: f"`{knob.env}` | " + ("the host's name" if name == "node" else f"`{knob.value}`")
        for name, knob in knobs.items()
    }
    assert table == expected


def test_files_of_secrets_are_listed_with_what_they_stand_for() -> None:
    listed = re.findall(r"^\| `(DLPIPE_[A-Z_]+)` \| `(DLPIPE_[A-Z_]+)` \|$", OPERATIONS, re.MULTILINE)
    assert dict(listed) == settings.secret_files()


@pytest.mark.parametrize(
    "file",
    [
        "docker-compose.yml",
        "README.md",
        "docs/operations.md",
        "docs/deployment.md",
        "docs/runbooks.md",
        "ops/Dockerfile",
    ],
)  # fmt: skip
def test_variables_named_in_files_for_people_are_settings(file: str) -> None:
    named = set(re.findall(r"\bDLPIPE_[A-Z0-9_]*[A-Z0-9]\b", (ROOT / file).read_text(encoding="utf-8")))
    assert named <= {*settings.names().values(), *settings.secret_files(), settings.CONFIG_ENV}


# ── findings ──────────────────────────────────────────────────────────────────────────────────────


def test_findings_of_the_checker_are_listed_with_their_sentences() -> None:
    section = OPERATIONS.split("\n## Checking the whole\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", section, re.MULTILINE)
    assert listed == [*verify.FINDINGS.items(), *verify.NOTES.items()]


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_listed_with_their_labels_and_meaning() -> None:
    section = OPERATIONS.split("\n## Metrics\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(dlpipe_[a-z_]+)` \| ([^|]*)\| (.+) \|$", section, re.MULTILINE)
    wanted = [(one.title, " ".join(f"`{label}`" for label in one.labels), one.help) for one in series.ALL.values()]
    assert [(name, labels.strip(), meaning) for name, labels, meaning in listed] == wanted


def test_metrics_named_beside_the_table_exist() -> None:
    section = OPERATIONS.split("\n## Metrics\n")[1].split("\n## ")[0]
    assert set(re.findall(r"\bdlpipe_[a-z_]+", section)) == {one.title for one in series.ALL.values()}


# ── error codes ───────────────────────────────────────────────────────────────────────────────────


def _codes() -> Iterator[tuple[str, str]]:
    """Each error code that the source spells out, and where: a word, or a pattern for `f"{field}_invalid"`."""
    for file in sorted((ROOT / "dlpipe").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for value in _code_expressions(node):
                pattern = _pattern(value)
                if pattern is not None:
                    yield pattern, f"{file.relative_to(ROOT)}:{value.lineno}"


def _code_expressions(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Call(func=ast.Name(id="Reject"), args=[code, *_]):
            yield code
        case ast.Call(keywords=keywords):
            yield from (keyword.value for keyword in keywords if keyword.arg == "code")
        case ast.Assign(targets=[ast.Name(id="code")], value=value):
            yield value
        case ast.Assign(targets=[ast.Name(id="_CODES")], value=ast.Dict(values=rows)):
            yield from (row.elts[0] for row in rows if isinstance(row, ast.Tuple))
        case ast.Assign(targets=[ast.Name(id="ATTEMPTS_EXHAUSTED")], value=value):
            yield value
        case _:
            pass


def _pattern(value: ast.expr) -> str | None:
    match value:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else "[a-z0-9_]+" for p in parts)
        case _:
            return None  # passed on from elsewhere


def listed_codes() -> set[str]:
    section = OPERATIONS.split("\n## Error codes\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    return {code for cell in cells for code in _INLINE.findall(cell)}


def test_no_error_code_is_listed_twice() -> None:
    """Two rows would sooner or later say two things of it."""
    section = OPERATIONS.split("\n## Error codes\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    counts = Counter(code for cell in cells for code in _INLINE.findall(cell))
    assert [code for code, count in counts.items() if count > 1] == []


def test_every_error_code_is_listed_in_operations() -> None:
    listed = listed_codes()
    missing = {f"{code} ({where})" for code, where in _codes() if not any(re.fullmatch(code, one) for one in listed)}
    assert missing == set()


def test_every_listed_error_code_is_in_the_source() -> None:
    patterns = {code for code, _ in _codes()}
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "dlpipe").rglob("*.py"))
    strangers = {
        code
        for code in listed_codes()
        if not any(re.fullmatch(pattern, code) for pattern in patterns) and not re.search(rf"\b{code}\b", text)
    }
    assert strangers == set()
