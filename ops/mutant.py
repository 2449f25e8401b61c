"""The shape of a planted mutant."""

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
