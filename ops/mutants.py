"""Break each guard that matters, one at a time and in a copy, and see that a test notices.

    python ops/mutants.py                     all of them, and the table of who caught whom
    python ops/mutants.py --only fence        those whose name has this in it
    python ops/mutants.py --write docs/mutants.md

A mutant is a piece of the package's text and what it is replaced by. One whose text is no longer there exactly
once is an error: whoever changes a guard says here how it would be broken from then on.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from ops.mutant import Mutant  # noqa: E402
from ops.mutants_bodies import BODIES  # noqa: E402
from ops.mutants_origins import ORIGINS  # noqa: E402
from ops.mutants_planted import PLANTED  # noqa: E402
from ops.mutants_queues import QUEUES  # noqa: E402
from ops.mutants_shown import SHOWN  # noqa: E402
from ops.mutants_waits import WAITS  # noqa: E402

_COPIED = ("dlpipe", "tests", "ops", "docs", "pyproject.toml", "celeryconfig.py", "Makefile", "README.md")
_TIMEOUT_S = 240
MUTANTS = (*PLANTED, *ORIGINS, *BODIES, *SHOWN, *WAITS, *QUEUES)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    caught_by: str | None
    """The test that noticed; None when it survived."""
    took_s: float
    said: str = ""


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """The file's text with the guard broken; ValueError when the text is not there exactly once."""
    text = (root / mutant.file).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: its text is {count} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def copy(to: Path) -> Path:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        elif source.exists():
            shutil.copy(source, to / name)
    return to


def run_tests(place: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    # The copy comes first, whatever is installed: a mutant that nobody imports would survive everything.
    env = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def judge(mutant: Mutant) -> Verdict:
    """Plant it in a copy, and run the tests that should notice."""
    began = time.monotonic()
    text = mutated(mutant)
    with tempfile.TemporaryDirectory(prefix="dlmut") as folder:
        place = copy(Path(folder))
        (place / mutant.file).write_text(text)
        try:
            done = run_tests(place, mutant.tests)
        except subprocess.TimeoutExpired:
            return Verdict(mutant, "hangs: the time-out", time.monotonic() - began)
    found = _FAILED.search(done.stdout)
    # 1: tests failed. Anything else but 0 is our own mistake: no such test, or nothing collected.
    caught = found[1] if done.returncode == 1 and found else None
    return Verdict(mutant, caught, time.monotonic() - began, "" if caught else done.stdout + done.stderr)


def sound(mutants: Iterable[Mutant]) -> str | None:
    """The tests must pass on an unbroken copy, or their verdicts mean nothing; what they say otherwise."""
    # Without "-k" and its words.
    named = {test for mutant in mutants for test in mutant.tests if test.startswith("tests/")}
    tests = sorted(test for test in named if "::" not in test)
    tests += sorted(test for test in named if "::" in test and test.partition("::")[0] not in tests)
    with tempfile.TemporaryDirectory(prefix="dlmut") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-n", "2", *tests],
            cwd=copy(Path(folder)), env={**os.environ, "PYTHONPATH": folder},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    return None if done.returncode == 0 else done.stdout[-4000:] + done.stderr[-1000:]


def table(verdicts: Iterable[Verdict]) -> str:
    lines = ["| mutant | broken in | what is broken | caught by |", "|---|---|---|---|"]
    for one in verdicts:
        name = one.caught_by.partition("[")[0] if one.caught_by else "**nobody**"
        mutant = one.mutant
        lines.append(f"| {mutant.name} | `{mutant.file}` | {mutant.what} | `{name}` |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, help="also write the table into this page, below its marker")
    parser.add_argument("--unsound", action="store_true", help="do not run the tests on the unbroken package first")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    for mutant in chosen:
        mutated(mutant)
    began = time.monotonic()
    if not options.unsound and (trouble := sound(chosen)):
        print(f"the tests fail without any mutant:\n{trouble}")
        return 2
    with ThreadPoolExecutor(options.processes) as pool:
        verdicts = []
        for one in pool.map(judge, chosen):
            verdicts.append(one)
            print(
                f"{'caught' if one.caught_by else 'SURVIVED':<9}{one.mutant.name:<40}{one.caught_by or ''}", flush=True
            )
    survivors = [one for one in verdicts if one.caught_by is None]
    for one in survivors:
        print(f"\n{one.mutant.name} SURVIVED {' '.join(one.mutant.tests)}:\n{one.said[-2500:]}")
    print(f"\n{table(verdicts)}\n")
    print(f"{len(verdicts)} mutants, {len(survivors)} survived, in {time.monotonic() - began:.0f} s")
    if options.write:
        above = options.write.read_text().partition(MARKER)[0]
        options.write.write_text(f"{above}{MARKER}\n\n{table(verdicts)}\n")
    return 1 if survivors or not verdicts else 0


MARKER = "<!-- written by: make mutants -->"

if __name__ == "__main__":
    sys.exit(main())
