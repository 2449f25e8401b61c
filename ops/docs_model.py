"""Writes docs/model.md from the model in tests/model; `--check` says whether it is fresh."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "model.md"


def main() -> int:
    sys.path.insert(0, str(ROOT))  # the model is among the tests, which nobody installs
    from tests.model import page

    options: Any = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true", help="change nothing; fail when the page is stale")
    check: bool = options.parse_args().check
    text = page.render()
    fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
    if check:
        print(f"{PAGE.name} is {'fresh' if fresh else 'stale; run: make docs'}")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name} {'was fresh' if fresh else 'is written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
