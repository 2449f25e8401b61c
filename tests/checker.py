"""The independent check, for tests: whatever a test did to a world, this says whether it is still whole."""

from __future__ import annotations

from pathlib import Path

from dlpipe.verify import Finding, Options, check


def findings(database_url: str, store_root: Path, *, strict: bool = True, notes: bool = False) -> list[Finding]:
    """All that is wrong. Strict: nothing is running any more, so nothing may be under way."""
    found = check(database_url, store_root, Options(strict=strict))
    return [one for one in found if notes or not one.is_note]


def assert_clean(database_url: str, store_root: Path, *, strict: bool = True) -> None:
    wrong = findings(database_url, store_root, strict=strict)
    assert not wrong, "the checker finds:\n" + "\n".join(map(str, wrong))
