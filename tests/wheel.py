"""The package as it is installed from its wheel, built once for a test and laid into a folder of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import absent
from tests.fleet import REPOSITORY


def installed(folder: Path) -> Path:
    """Answers the folder that has to be on Python's path."""
    if importlib.util.find_spec("hatchling") is None:
        absent("no hatchling to build the wheel with")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")]
    built = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "wheels").glob("dlpipe-*.whl")
    with zipfile.ZipFile(wheel) as packed:  # a pure wheel is installed by unpacking it
        packed.extractall(folder / "site")
    return folder / "site"
