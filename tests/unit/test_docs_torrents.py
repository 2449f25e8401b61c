"""docs/torrents.md says what the code says, and knows every word of the client and every setting."""

from __future__ import annotations

import pytest

from ops import docs_torrents


def test_the_page_is_fresh() -> None:
    page = docs_torrents.PAGE.read_text(encoding="utf-8")
    assert docs_torrents.render(page) == page, "run: make docs"


def test_a_page_without_one_of_the_tables_is_refused() -> None:
    page = docs_torrents.PAGE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="blocks"):
        docs_torrents.render(page.replace("<!-- made: words -->", ""))
