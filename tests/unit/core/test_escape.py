"""Text from elsewhere, as people may be shown it: no control and no bidi character gets through."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlpipe.core.escape import escape

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
BIDI = [*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
LINES = ["\u2028", "\u2029"]
HIDDEN = ["\u200b", "\u2060", "\ufeff", "\ufff9", "\U000e0001", "\U000e0041"]
HALVES = ["\ud800", "\udc9b", "\udfff"]
UNSEEN = [*CONTROLS, *BIDI, *LINES, *HIDDEN, *HALVES]
hostile = st.text(st.one_of(st.sampled_from(UNSEEN), st.characters()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x9b31mb", "a\\x9b31mb"),  # CSI as one character
        ("a\r\n\tb", "a\\x0d\\x0a\\x09b"),
        ("a\x7f\0", "a\\x7f\\x00"),
        ("x\u202egnp.exe", "x\\u202egnp.exe"),
        ("a\u2028b\u2066", "a\\u2028b\\u2066"),
        ("\U000e0041", "\\U000e0041"),
        ("\udc80", "\\udc80"),
    ],
)
def test_a_character_that_is_not_seen_is_named_by_its_number(text: str, shown: str) -> None:
    assert escape(text) == shown


@pytest.mark.parametrize(
    "text", ["", "a b", "Grüße\u00a0漢字\u3000😀", "\u0645\u06cc\u200c\u062e\u0648", "क\u200dष", "C:\\x1b", "עברית"]
)
def test_what_is_seen_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


@example("".join(UNSEEN))
@given(hostile)
def test_of_any_text_nothing_unseen_gets_through(text: str) -> None:
    shown = escape(text)
    assert not set(shown) & set(UNSEEN)
    assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert escape(shown) == shown
    shown.encode()  # raises for half a surrogate pair


@given(hostile)
def test_what_is_kept_is_kept_and_nothing_else(text: str) -> None:
    assert set(escape(text, keep="\n\t")) & set(UNSEEN) <= {"\n", "\t"}
    assert escape(text, keep="\n\t").count("\n") == text.count("\n")
