"""The integration part on each pair of engines, one after the other, and a table of what came of it: `make engines`.

python -m tests.pairs                            the three rows of the table
python -m tests.pairs --only rabbitmq            those whose name has this in it
python -m tests.pairs -- -n 2 -k worker          what comes after -- is for pytest
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.engines import Choice

PAIRS = {
    Choice("postgresql", "redis", "local"): None,
    Choice("postgresql", "rabbitmq", "local"): None,
    Choice("postgresql", "rabbitmq", "s3"): "store",
}
"""Of a row that has another store than the one before, only the tests that take one: the others are the same again."""
HEADS = (
    "ledger",
    "broker",
    "store",
    "passed",
    "failed",
    "skipped",
    "own",
    "none",
    "on ledger",
    "on broker",
    "on store",
)


def run(choice: Choice, words: Sequence[str]) -> dict[str, Any] | None:
    """What the run counted; None when it came to no end."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "engines.json"
        options = [f"--{name}={value}" for name, value in asdict(choice).items()]
        if taking := PAIRS[choice]:
            options.append(f"--taking={taking}")
        argv = [sys.executable, "-m", "pytest", "-q", "tests/integration", *options, f"--engines-report={report}"]
        subprocess.run([*argv, *words], check=False)
        if not report.exists():
            return None
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def row(choice: Choice, found: Mapping[str, Any] | None) -> list[str]:
    chosen = asdict(choice)
    if found is None:
        return [*chosen.values(), "no end"]
    ends = [str(found["ends"].get(name, 0)) for name in ("passed", "failed", "skipped")]
    apart = [str(found[name]) for name in ("own", "none")]
    return [*chosen.values(), *ends, *apart, *(str(found["engines"][name].get(chosen[name], 0)) for name in chosen)]


def table(rows: Sequence[Sequence[str]]) -> str:
    filled = [[*one, *[""] * (len(HEADS) - len(one))] for one in (HEADS, *rows)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(one, widths, strict=True)) for one in filled)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORD", help="only the pairs whose name has this in it")
    parser.add_argument("words", nargs="*", metavar="PYTEST", help="after --: options of pytest")
    asked = parser.parse_args(argv)
    pairs = [one for one in PAIRS if asked.only in str(one)]
    if not pairs:
        parser.error(f"no pair has {asked.only!r} in its name: {', '.join(map(str, PAIRS))}")
    rows, whole = [], True
    for choice in pairs:
        found = run(choice, asked.words)
        rows.append(row(choice, found))
        whole = whole and found is not None and found["status"] == 0
    print()
    print(table(rows))
    print("\nown: tests that keep engines of their own; none: tests in which none takes part; each run says why")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
