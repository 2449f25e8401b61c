"""A real RabbitMQ for tests: a node of its own, all its files in one folder, on free loopback ports."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import uuid
from pathlib import Path
from types import TracebackType

import kombu

from dlpipe.embedded.tether import tethered
from tests.certificates import Certificate
from tests.conftest import absent
from tests.servers import free_port, wait_until

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S = 90.0
STOP_S = 30.0
_ROOMS = 16
CONFIG = """
loopback_users = none
default_user = dlpipe
default_pass = sesame
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.relative = 0.9
log.file.level = warning
"""
ENCRYPTED = """
listeners.tcp = none
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.certfile = {chain}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""
_MAKE_ROOMS = """
[begin
    ok = rabbit_vhost:add(Name, <<"tests">>),
    All = <<".*">>,
    ok = rabbit_auth_backend_internal:set_permissions(<<"dlpipe">>, Name, All, All, All, <<"tests">>)
end || Name <- [%s]], ok.
"""


class RabbitMQ:
    """Up while the block lasts. It keeps its data over `restart`. As it takes some 128 MiB, one for a module.

    With a certificate it speaks TLS only, on `port`.
    """

    def __init__(self, folder: Path, certificate: Certificate | None = None) -> None:
        if not _SERVER.exists() or shutil.which("epmd") is None:
            absent("no rabbitmq-server: install the Debian package of that name")
        self._folder = folder
        self.port, dist, names = free_port(), free_port(), free_port()
        config = folder / "rabbitmq.conf"
        config.write_text(CONFIG)
        if certificate is not None:
            chain, key = folder / "server.pem", folder / "server.key"
            chain.write_text(certificate.chain)
            key.write_text(certificate.key)
            config.write_text(CONFIG + ENCRYPTED.format(port=self.port, chain=chain, key=key))
        self._encrypted = certificate is not None
        plugins = folder / "plugins"
        plugins.write_text("[].\n")
        self._env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(folder),  # of the cookie by which its tools know it
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"dlpipe-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ALLOW_INPUT": "1",  # then the program itself takes the place of its script
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -noinput",
        }
        self._names: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._rooms: list[str] = []

    @property
    def url(self) -> str:
        """Where it answers plainly."""
        return f"amqp://dlpipe:sesame@127.0.0.1:{self.port}//"

    def new_url(self) -> str:
        """A virtual host in which nobody was before."""
        if not self._rooms:  # many at once, as asking the server takes a second or two
            self._rooms = [f"room-{uuid.uuid4().hex[:12]}" for _ in range(_ROOMS)]
            self.ctl("eval", _MAKE_ROOMS % ",".join(f'<<"{name}">>' for name in self._rooms))
        return f"amqp://dlpipe:sesame@127.0.0.1:{self.port}/{self._rooms.pop()}"

    def start(self) -> None:
        if self._names is None:
            self._names = self._run("epmd", "epmd")
        self._server = self._run("server", str(_SERVER))
        wait_until(self._answers, "an answer from RabbitMQ", START_S)

    def restart(self) -> None:
        """Kill it, and start it with what it had on disk."""
        self._end(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def ctl(self, *words: str) -> str:
        done = subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", *words],
            env=self._env, cwd=self._folder, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def _run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                tethered(list(command)), env=self._env, cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def _answers(self) -> bool:
        if self._server is None or self._server.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended: {(self._folder / 'server.out').read_text()[-2000:]}")
        how = {"cert_reqs": ssl.CERT_NONE} if self._encrypted else False
        try:
            with kombu.Connection(self.url, connect_timeout=2, ssl=how) as connection:
                connection.ensure_connection(max_retries=1, timeout=2)
                return True
        except (OSError, kombu.exceptions.OperationalError):
            return False

    def _end(self, number: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            server.send_signal(number)
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def __enter__(self) -> RabbitMQ:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._end(signal.SIGKILL)  # nothing of it is wanted any more
        if self._names is not None:
            self._names.kill()
            self._names.wait()
            self._names = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
