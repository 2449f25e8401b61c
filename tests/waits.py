"""The codes with which the package puts jobs off, as its source has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dlpipe
from dlpipe.core import stores


@cache
def postponed_codes() -> frozenset[str]:
    return frozenset(_found())


def _found() -> Iterator[str]:
    """The codes of all failures of this kind that the source makes."""
    package = Path(dlpipe.__file__).parent
    yield from (one.code for one in vars(stores).values() if isinstance(one, stores.Refused))
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Postponed"), keywords=keywords):
                    given = [one.value for one in keywords if one.arg == "code"]
                case ast.Call(func=ast.Name(id="_postponed"), args=[code, *_]):
                    given = [code]
                case ast.If(test=ast.Compare(left=ast.Name(id="code"), comparators=[code]), body=body):
                    # What is looked up by what the system says, and handed back for one of the codes.
                    given = [code] if "Postponed(" in ast.unparse(body[-1]) else []
                case _:
                    given = []
            yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))
