"""How text from elsewhere is shown, on a terminal, in a log and in a table: what is not seen is named by its number.

A control character can move the cursor, recolour or rename a window, or begin a line of its own; a bidi mark can show a
text in another order than it has (SAFE-2). Pure.
"""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"
"""Invisible, and part of how Persian, Hindi and others are written."""


def escape(text: str, keep: str = "") -> str:
    """The text with each character as `\\x1b`, `\\u202e` or `\\U000e0001` that is neither seen, a blank nor in `keep`.

    A backslash stays one: this is for people, and programs are given JSON.
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
