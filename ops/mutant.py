"""What a mutant is: a piece of the package's text, and what it is replaced by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    """What is broken, for people."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
