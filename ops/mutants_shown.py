"""Planted mutants of what is shown, logged and named: text from elsewhere, secrets in addresses, files under --out."""

from __future__ import annotations

from ops.mutant import Mutant

_ESCAPE = "dlpipe/core/escape.py"
_SECRETS = "dlpipe/core/secrets.py"
_OUTPUT = "dlpipe/cli/output.py"
_LINES = "dlpipe/telemetry/lines.py"
_PLACING = "dlpipe/cli/placing.py"
_ESCAPED = "tests/unit/core/test_escape.py"
_SHOWN = "tests/unit/cli/test_shown.py"
_PRINTED = "tests/unit/cli/test_output.py"
_LOGGED = "tests/unit/telemetry/test_lines.py"
_HIDDEN = "tests/unit/core/test_secrets.py"
_PLACED = "tests/unit/cli/test_placing.py"

SHOWN = (
    Mutant(
        "bidi-marks-shown", "a mark that reorders what is read reaches the terminal", _ESCAPE,
        'or unicodedata.category(char) == "Zs"', 'or unicodedata.category(char) in ("Zs", "Cf")', (_ESCAPED,),
    ),
    Mutant(
        "json-unescaped", "JSON reaches a terminal with what it holds", _OUTPUT,
        "default=_plain, ensure_ascii=True", "default=_plain, ensure_ascii=False", (_PRINTED,),
    ),
    Mutant(
        "notes-unescaped", "an error line repeats an argument with what it does to a terminal", _OUTPUT,
        "click.echo(safe(text), err=True)", "click.echo(text, err=True)", (_SHOWN,),
    ),
    Mutant(
        "cells-unescaped", "a row that is piped holds line breaks and tabs of others", _OUTPUT,
        'click.echo("\\t".join(map(safe, row)))', 'click.echo("\\t".join(map(str, row)))', (_PRINTED,),
    ),
    Mutant(
        "exact-on-a-terminal", "a path moves the cursor", _OUTPUT,
        "if sys.stdout.isatty() else text)", "if False else text)", (_PRINTED,),
    ),
    Mutant(
        "error-lines-forged", "a line break in an error begins another error", _OUTPUT,
        'note(f"    {line}")', "note(line)", (_PRINTED,),
    ),
    Mutant(
        "traceback-unescaped", "what an exception says is logged raw", _LINES,
        "clean.exc_text = escape(self._inner.formatException(record.exc_info), _LAID_OUT)",
        "clean.exc_text = self._inner.formatException(record.exc_info)", (_LOGGED,),
    ),
    Mutant(
        "log-lines-forged", "a line break in a message begins another log line", _LINES,
        "_SET_IN + one for one", "one for one", (_LOGGED,),
    ),
    Mutant(
        "formula-in-a-cell", "a spreadsheet works out what a server or a user named", "dlpipe/cli/artifacts.py",
        "if shown.startswith(_FORMULA) else shown", "if False else shown", (_SHOWN,),
    ),
    Mutant(
        "family-not-hidden", "the other parts of a signed request are shown", _SECRETS,
        'lower in NAMES or lower.replace("_", "-").startswith(FAMILIES)', "lower in NAMES", (_HIDDEN,),
    ),
    Mutant(
        "numbered-secret-shown", "pass2 is not known as a password", _SECRETS,
        'word in WORDS or _NUMBER.sub("", word) in WORDS', "word in WORDS", (_HIDDEN,),
    ),
    Mutant(
        "any-doi-no-token", "a token that begins like a DOI is shown", _SECRETS,
        "(?!.*[A-Za-z0-9+=%]{24})", "", (_HIDDEN,),
    ),
    Mutant(
        "name-begins-like-an-option", "a file under --out is taken for an option", _PLACING,
        ".lstrip(_FRONT)", '.lstrip("._ ")', (_PLACED,),
    ),
    Mutant(
        "device-as-a-name", "a file under --out is a device on Windows", _PLACING,
        'f"_{name}" if _DEVICE.fullmatch(name) else name', "name", (_PLACED,),
    ),
    Mutant(
        "endless-ending", "an ending makes a name longer than file systems take", _PLACING,
        "if len(ext.encode()) > MAX_ENDING_BYTES:", "if False:", (_PLACED,),
    ),
    Mutant(
        "name-in-any-form", "two spellings of one name are two files here and one elsewhere", _PLACING,
        'unicodedata.normalize("NFC", last)', "last", (_PLACED,),
    ),
    Mutant(
        "foreign-file-overwritten", "a file of another program is written over where there are no links", _PLACING,
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC", "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC", (_PLACED,),
    ),
    Mutant(
        "refusals-kept", "a fetch keeps a row of each refused line until it ends", "dlpipe/cli/ended.py",
        "if self._refused > SHOWN_REFUSALS:\n                return",
        "if self._refused > SHOWN_REFUSALS:\n                pass",
        ("tests/unit/cli/test_ended.py",),
    ),
)  # fmt: skip
