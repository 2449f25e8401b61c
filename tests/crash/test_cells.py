"""Cells of the crash matrix that a guard hangs on alone, each as a test of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.faults import Fault
from tests.crash.matrix import Cell, Passage, play
from tests.crash.site import Site, SqliteLedgers
from tests.servers import Valkey

pytestmark = pytest.mark.crash


@pytest.fixture
def site(valkey: Valkey) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="dlm") as place:
        yield Site(Path(place), SqliteLedgers(Path(place)), valkey)


@pytest.mark.parametrize(
    ("kind", "step", "point", "fault"),
    [
        # What stands under the name of the file is as long as it, and something else.
        ("damaged", "finalize", "finalize.claimed", Fault.ANSWER),
        ("damaged", "finalize", "finalize.claimed", Fault.LEASE),
        # The one who was stopped while he had the part comes back after the end.
        ("fresh", "stream", "stream.chunk", Fault.OVERTAKEN),
        ("fresh", "finalize", "finalize.before_link", Fault.OVERTAKEN),
        # All is done, and nobody was told.
        ("fresh", "index", "index.recording", Fault.ANSWER),
    ],
)
def test_the_job_ends_as_if_nothing_had_been(site: Site, kind: str, step: str, point: str, fault: Fault) -> None:
    assert play(site, Cell(kind, Passage(step, point, 1), fault, "sqlite")).wrong == []
