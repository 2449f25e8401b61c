"""A part of the crash matrix, in each run of the tests: one cell for each point and fault. `make crash` plays all."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import postgres as postgres_server
from tests.conftest import absent
from tests.crash.kinds import KINDS
from tests.crash.matrix import ENGINES, dry_run
from tests.crash.site import Site, SqliteLedgers
from tests.crash.test_crash_points import points_in_the_source
from tests.fleet import REPOSITORY
from tests.servers import Valkey

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_every_crash_point_is_passed_by_some_kind_of_job(valkey: Valkey) -> None:
    with tempfile.TemporaryDirectory(prefix="dlm") as place:
        site = Site(Path(place), SqliteLedgers(Path(place)), valkey)
        passed = {one.passage.point for kind in KINDS for one in dry_run(site, kind)}
    # Those of torrents, of reconcile's walks, of buckets, and of what owners and operators do have their own suites.
    apart = ("torrents.", "heal.", "purge.", "gc.", "backfill.", "objects.")
    wanted = {name for name in points_in_the_source() if not name.startswith(apart)}
    assert passed == wanted


@pytest.mark.timeout(1_800)  # it is work, four to eight minutes of it
@pytest.mark.parametrize("engine", ENGINES)
def test_each_fault_at_each_point_leaves_nothing_that_is_not_healed(engine: str) -> None:
    if engine == "postgresql" and (reason := postgres_server.missing()):
        absent(reason)
    command = [sys.executable, "-m", "tests.crash.matrix", "--few", "--engine", engine, "--processes", "1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1_790)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    played = re.search(r"^(\d+) cells, 0 violated", done.stdout, re.MULTILINE)
    assert played is not None
    assert int(played[1]) >= 500
