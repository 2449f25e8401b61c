"""The image of ops/Dockerfile, built and run where there is something to build it with, and a registry. OPS-3."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.fleet import REPOSITORY
from tests.webserver import WebServer
from tests.world import sha256

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.no_engines(),
]

BUILDAH = ["buildah", "--storage-driver", "vfs"]


def buildah(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BUILDAH, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s)


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    # Not `absent`: set-up does not install buildah, and no set-up can bring a registry.
    if shutil.which("buildah") is None:
        pytest.skip("no buildah to build the image with: install the Debian package buildah")
    pulled = buildah("pull", "docker.io/library/python:3.12-slim", timeout_s=300)
    if pulled.returncode != 0:
        pytest.skip(f"the base image cannot be had from its registry: {pulled.stderr.strip().splitlines()[-1:]}")
    name = f"dlpipe-test-{uuid.uuid4().hex[:8]}"
    built = buildah("bud", "--isolation", "chroot", "-f", "ops/Dockerfile", "-t", name, ".", timeout_s=900)
    assert built.returncode == 0, built.stderr[-3000:]
    made = buildah("from", "--name", name, name)
    assert made.returncode == 0, made.stderr
    yield name
    buildah("rm", name)
    buildah("rmi", name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["id", "-u"], "10001"),
        (["dlpipe", "--version"], "dlpipe"),
        (["celery", "-A", "dlpipe", "worker", "--help"], "worker"),
        (["python", "-c", "import celeryconfig, dlpipe; print(celeryconfig.__file__)"], "/srv/dlpipe/celeryconfig.py"),
        (["cat", "/srv/dlpipe/flowerconfig.py"], "FLOWER_USERS_FILE"),
    ],
)
def test_the_image_runs_as_nobody_and_has_what_services_call(container: str, words: list[str], said: str) -> None:
    ran = buildah("run", "--isolation", "chroot", container, "--", *words)
    assert ran.returncode == 0, ran.stderr
    assert said in ran.stdout


def test_a_file_is_fetched_and_proven_by_what_is_in_the_image(container: str, web: WebServer) -> None:
    """All of it at work as nobody: the ledger, the private Redis, workers, the network's and the store's code."""
    url = web.put("/paper.bin", b"worth fetching " * 1_000)
    script = f"cd /tmp && export DLPIPE_HOME=/tmp/home DLPIPE_ALLOW_PRIVATE=1 && dlpipe fetch {url} && dlpipe verify"
    ran = buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sha256(b"worth fetching " * 1_000) in ran.stdout
    assert "nothing wrong" in ran.stdout + ran.stderr


def test_who_runs_in_the_image_can_change_nothing_of_it(container: str) -> None:
    writable = "find /opt/dlpipe /srv/dlpipe -writable ! -type l"
    ran = buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", writable)
    assert (ran.returncode, ran.stdout) == (0, "")
