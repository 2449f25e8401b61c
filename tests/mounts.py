"""File systems of a test's own: mounted in a namespace that ends with the process which sees them."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import absent

_TIMEOUT_S = 100
_REPOSITORY = Path(__file__).resolve().parents[1]


def _unshare() -> list[str]:
    # An ordinary user becomes root of a namespace of users first, where the kernel lets him.
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, "--mount", "--propagation", "private"]


def need() -> None:
    """Pass the test over where nothing can be mounted. What a machine does not allow is nobody's fault, also in CI."""
    if shutil.which("unshare") is None:
        absent("no `unshare` to mount a file system in private with: install the Debian package util-linux")
    tried = subprocess.run([*_unshare(), "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip("this machine lets us mount nothing, not even in a namespace of our own")


def need_disks() -> None:
    """The same for file systems in a file."""
    need()
    if os.geteuid() != 0 or not list(Path("/dev").glob("loop*")):
        pytest.skip("only root may mount a file as a disk, and only with loop devices")


def need_xfs() -> None:
    need_disks()
    if shutil.which("mkfs.xfs") is None:
        absent("no mkfs.xfs to make a file system with reflinks: install the Debian package xfsprogs")


def in_private(scene: Callable[[Path], None], folder: Path, within_s: float = _TIMEOUT_S) -> None:
    """Play a function of a test module in a process whose mounts are its own; what it raises fails the test."""
    module = inspect.getmodule(scene)
    assert module is not None
    assert module.__file__ is not None
    code = (
        "import runpy, sys, pathlib\n"
        f"space = runpy.run_path({module.__file__!r}, run_name='scene')\n"
        f"space[{scene.__name__!r}](pathlib.Path(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [*_unshare(), sys.executable, "-c", code, str(folder)],
        cwd=_REPOSITORY,  # where Python looks for modules first
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def mount(kind: str, at: Path, *options: str, device: str = "none") -> Path:
    """Mount a file system; only for what runs `in_private`."""
    at.mkdir(parents=True, exist_ok=True)
    flags = ["-o", ",".join(options)] if options else []
    subprocess.run(["mount", "-t", kind, *flags, device, str(at)], check=True, capture_output=True)
    return at


def remount(at: Path, *options: str) -> None:
    # Of this mount alone (`bind`): the file system's own flags are not for an ordinary user to change.
    subprocess.run(["mount", "-o", ",".join(["remount,bind", *options]), str(at)], check=True, capture_output=True)


def unmount(at: Path) -> None:
    subprocess.run(["umount", str(at)], check=True, capture_output=True)


def mount_xfs(folder: Path) -> Path:
    """A file system with reflinks, in a sparse file."""
    image = folder / "xfs.img"
    with image.open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True, capture_output=True)
    return mount("xfs", folder / "xfs", "loop", device=str(image))
