"""The fuzzer of the staging folder, for a few seconds of it. RESUME-2, HEAL-4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import staging

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.no_engines, pytest.mark.timeout(120)]
CASES = 15


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_staging_folders_cost_no_job_its_file_and_no_tenant_its_walk(tmp_path: Path, seed: int) -> None:
    assert sum(staging.run(CASES, seed, tmp_path).values()) == CASES
