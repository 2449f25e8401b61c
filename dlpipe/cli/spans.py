"""Spans of time as people write them: 90d, 12h, 30m, 45s."""

from __future__ import annotations

import re

import click

_SPAN = re.compile(r"([0-9]{1,9})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Span(click.ParamType[float]):
    """So many seconds."""

    name = "span"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _SPAN.match(str(value))
        seconds = int(match[1]) * _SECONDS[match[2]] if match else None
        if seconds is None or seconds > 100 * 366 * 86_400:
            self.fail(f"{str(value)!r} is no span of time. Write a number and d, h, m or s, e.g. 90d.", param, ctx)
        return float(seconds)
