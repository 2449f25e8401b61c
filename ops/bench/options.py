"""How much is measured: by default what the targets say; less makes a trial."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, fields

GROUPS = ("stream", "pipeline", "plan", "small", "growth", "memory")
GIB = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    rounds: int = _LEAST_ROUNDS
    sizes: tuple[int, ...] = (GIB, 4 * GIB)
    """Of the files that are streamed; memory is measured with the last."""
    slow_bytes: int = 200_000_000
    jobs: int = 1_000
    plan_rows: int = 100_000
    growth_rows: int = 5_000_000

    @property
    def is_trial(self) -> bool:
        """Anything less than what the targets ask for."""
        full = Options()
        return self.sizes != full.sizes or any(
            getattr(self, one.name) < getattr(full, one.name) for one in fields(Options) if one.name != "sizes"
        )

    def __str__(self) -> str:
        sizes = " and ".join(f"{size / (1 << 20):g} MiB" for size in self.sizes)
        return (
            f"{self.rounds} rounds; files of {sizes}; slow: {self.slow_bytes / 1e6:.4g} MB; {self.jobs:,} jobs; "
            f"{self.plan_rows:,} planned; {self.growth_rows:,} finished"
        )


def parse(arguments: list[str]) -> tuple[tuple[str, ...], Options, bool]:
    """The groups to measure, how much, and whether the pages in docs/ are to be written even by a trial."""
    parser = argparse.ArgumentParser(
        prog="make bench", description="Measure ours and the peers, interleaved, and print a table of ratios."
    )
    parser.add_argument("--only", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}, with commas")
    parser.add_argument("--rounds", type=_positive, default=_LEAST_ROUNDS)
    parser.add_argument("--size", type=_size, help="of streamed files, as in 64M or 1G (default: 1G and 4G)")
    parser.add_argument("--jobs", type=_positive, default=Options.jobs)
    parser.add_argument("--plan-rows", type=_positive, default=Options.plan_rows)
    parser.add_argument("--growth-rows", type=_positive, default=Options.growth_rows)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md also when this is a trial")
    chosen = parser.parse_args(arguments)
    only = tuple(chosen.only.split(","))
    if unknown := [group for group in only if group not in GROUPS]:
        parser.error(f"ONLY={unknown[0]} is none of {', '.join(GROUPS)}")
    sizes = (chosen.size,) if chosen.size else Options.sizes
    slow = min(chosen.size or Options.slow_bytes, Options.slow_bytes)
    made = Options(chosen.rounds, sizes, slow, chosen.jobs, chosen.plan_rows, chosen.growth_rows)
    return only, made, chosen.write


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise ValueError(text)
    return number


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no size; say it as in 64M or 1G")
    return int(found[1]) * _UNITS[found[2].upper()]
