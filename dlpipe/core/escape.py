"""How text from elsewhere is shown, on a terminal, in a log and in a table: what is not seen is named by its number.

A control character can move the cursor, recolour or rename a window, or begin a line of its own; a bidi mark can show a
text in another order than it has (SAFE-2). Pure.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable

_JOINERS = "\u200c\u200d"
"""Invisible, and part of how Persian, Hindi and others are written."""


def escape(text: str, keep: str = "") -> str:
    """The text with each character as `\\x1b`, `\\u202e` or `\\U000e0001` that is neither seen, a blank nor in `keep`.

    A backslash stays one: this is to be read by people. What a program reads back is `json_line`.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) or char in keep else _number(ord(char)) for char in text)


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"


def _number(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_line(value: object, default: Callable[[object], object] = str) -> str:
    """One line of JSON, all of it printable ASCII."""
    # The one control character that JSON and its writer leave as it is.
    return json.dumps(value, default=default, ensure_ascii=True).replace("\x7f", "\\u007f")
