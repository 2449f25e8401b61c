"""Each system call of publishing and sharing, in one way of failing; `make crash` plays all ways."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import absent
from tests.crash import sweep
from tests.fleet import REPOSITORY

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.mark.timeout(900)
def test_whatever_call_fails_or_kills_the_next_worker_finds_its_way() -> None:
    if reason := sweep.missing():
        absent(reason)
    if not sweep.allowed():
        pytest.skip("this machine lets nobody trace a process")
    command = [sys.executable, "-m", "tests.crash.sweep", "--few"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=890)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    played = re.search(r"^(\d+) strikes, 0 violated", done.stdout, re.MULTILINE)
    assert played is not None
    assert int(played[1]) >= 150
