"""A measurement that cannot be believed ends the run: a wrong hash, a lost job, a server that is not there."""

from __future__ import annotations


class BenchFailed(Exception):
    """Something that was to be measured did not do what it should."""


class Absent(Exception):
    """What a row needs is not installed here; the row is marked as missing."""
