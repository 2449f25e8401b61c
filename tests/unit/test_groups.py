"""Tests of one group run in one process, so that what they share is set up once; a plugin could stop heeding that."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.xdist_group("groups")


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="all tests are in one process: add -n 2")
def test_a_test_is_handed_out_by_the_name_of_its_group(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@groups")
