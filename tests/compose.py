"""docker-compose.yml as plain processes: its commands, environment, secrets and health checks, without containers.

What containers give and one host does not is put in here, and nothing else: names of hosts, a port that every
service may have for itself, fixed places, what the images of others bring.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import yaml
from sqlalchemy import make_url

from tests import postgres
from tests.fleet import REPOSITORY, Process
from tests.postgres import Postgres
from tests.servers import free_port, server_binary, wait_until

FILE = REPOSITORY / "docker-compose.yml"
WORKERS = ("worker-plan", "worker-net", "worker-disk", "worker-beat")
OURS = ("migrate", *WORKERS, "beat", "flower")
_GIVEN = re.compile(r"\$\$|\$\{(\w+)(?:(:?[-?])([^}]*))?\}")
_PORTS = ("5432", "5555", "5672", "6379", "8333", "9090", "9333", "9464", "19333")
_ANY_PORT = re.compile(rf"\b(?:{'|'.join(_PORTS)})\b")
_RABBITMQ = Path("/usr/lib/rabbitmq/bin")
_ENTRYPOINTS = {"prometheus": ["prometheus"], "s3": ["weed"]}
_START_S = 120.0


def load(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file with its anchors and `${…}` filled in, as Compose does it."""

    def given(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, how, other = found.groups()
        value = (environ or {}).get(name)
        if value is None or (value == "" and how in (":-", ":?")):
            if how in ("?", ":?"):
                raise KeyError(f"{name}: {other}")
            return other or ""
        return value

    def fill(tree: Any) -> Any:
        match tree:
            case str():
                return _GIVEN.sub(given, tree)
            case dict():
                return {key: fill(value) for key, value in tree.items()}
            case list():
                return [fill(value) for value in tree]
            case _:
                return tree

    read: dict[str, Any] = fill(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return read


class Compose:
    """All of it in one folder below /tmp, ended and removed at the end of the block."""

    def __init__(self, *, broker: str = "redis", dotenv: Mapping[str, str] | None = None, **environ: str) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="dlpipe-compose-", dir="/tmp"))
        self.place.chmod(0o755)  # PostgreSQL is run as nobody by root
        self.secrets, self.log = self.place / "secrets", self.place / "log"
        self.services: dict[str, Any] = load({**(dotenv or {}), "SECRETS": str(self.secrets)})["services"]
        self.more = {"DLPIPE_ALLOW_PRIVATE": "1", "PYTHONWARNINGS": "ignore", **environ}
        self._ports: dict[tuple[str, str], str] = {}
        self.processes: dict[str, Process] = {}
        self._database: Postgres | None = None
        for folder in (self.log, self.place / "data", self.place / "bin"):
            folder.mkdir()
        self._make_secrets(broker)
        self._make_images()

    # ── what stands in the file, for this host ──

    def argv(self, name: str) -> list[str]:
        command = self.services[name]["command"]
        words = shlex.split(command) if isinstance(command, str) else list(command)
        words = [*self.services[name].get("entrypoint", _ENTRYPOINTS.get(name, [])), *words]
        return [self.here(name, word) for word in words]

    def env(self, name: str) -> dict[str, str]:
        written = {key: self.here(name, value) for key, value in self.services[name].get("environment", {}).items()}
        if name == "rabbitmq":
            written |= self._node()
        home = self.place / "home" / name
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(self.place / "bin"), os.environ.get("PATH", "/usr/bin:/bin")])
        # As the image has it: celeryconfig.py is found there.
        return {"PATH": path, "HOME": str(home), "PYTHONPATH": str(REPOSITORY), **self.more, **written}

    def here(self, name: str, text: str) -> str:
        """The same word on this host."""
        places = {
            r"/run/secrets/": f"{self.secrets}/",
            r"/srv/dlpipe/": f"{REPOSITORY / 'ops'}/",
            r"(?<![\w/])/var/lib/dlpipe\b": str(self.place / "home" / name),
            r"(?<![\w/])/data\b": str(self.place / ("data" if name in OURS else f"home/{name}")),
            r"/etc/prometheus\b": str(self.place / "prometheus-config"),
            r"(?<![\w/])/prometheus\b": str(self.place / "prometheus-data"),
            r"\b0\.0\.0\.0\b": "127.0.0.1",
        }
        for pattern, place in places.items():
            text = re.sub(pattern, place, text)
        # HOST:PORT, and HOST:PORT.PORT as SeaweedFS has it.
        hosts = re.compile(rf"\b({'|'.join(self.services)}):(\d+)(?:\.(\d+))?\b")
        text = hosts.sub(lambda found: self._address(*found.groups()), text)
        return _ANY_PORT.sub(lambda found: self.port(name, found[0]), text)

    def _address(self, host: str, number: str, second: str | None) -> str:
        return f"127.0.0.1:{'.'.join(self.port(host, one) for one in (number, second) if one)}"

    def port(self, name: str, number: int | str) -> str:
        """The one that stands for it here; the same each time, and never one for two."""
        key = (name, str(number))
        if key not in self._ports:
            self._ports[key] = str(free_port())
        return self._ports[key]

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text()

    def database(self) -> Postgres:
        assert self._database is not None, "it has not been started"
        return self._database

    # ── starting ──

    def start(self, name: str) -> Process:
        process = Process(name, self.argv(name), self.env(name), REPOSITORY, self.log / f"{name}.log")
        self.processes[name] = process
        return process

    def start_redis(self) -> None:
        folder = self.place / "redis"
        folder.mkdir()
        # Its image listens at the port that everybody knows, and keeps its data in the working folder.
        words = ["--port", self.port("redis", 6379), "--bind", "127.0.0.1", "--dir", str(folder)]
        argv = [*self.argv("redis"), *words]
        self.processes["redis"] = Process("redis", argv, self.env("redis"), REPOSITORY, self.log / "redis.log")
        self.until(lambda: self.healthy("redis"), "redis to be healthy")

    def start_postgres(self) -> None:
        """What the image's entrypoint does: a cluster, the user with the password from the file, its database."""
        words = self.argv("postgres")
        assert words[0] == "postgres"
        assert words[1::2] == ["-c"] * len(words[1::2])
        settings = dict(word.split("=", 1) for word in words[2::2])
        env = self.env("postgres")
        user, database = env["POSTGRES_USER"], env["POSTGRES_DB"]
        self._database = Postgres(
            self.place / "postgres",
            settings={**settings, "listen_addresses": "127.0.0.1", "port": self.port("postgres", 5432)},
            auth=["--auth-local=trust", *shlex.split(env["POSTGRES_INITDB_ARGS"])],
        )
        password = Path(env["POSTGRES_PASSWORD_FILE"]).read_text()
        with self._database.connect() as admin:
            admin.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                psycopg.sql.Identifier(user), psycopg.sql.Literal(password)))  # fmt: skip
            admin.execute(psycopg.sql.SQL("CREATE DATABASE {} OWNER {}").format(
                psycopg.sql.Identifier(database), psycopg.sql.Identifier(user)))  # fmt: skip
        self.until(lambda: self.healthy("postgres"), "postgres to be healthy")

    def start_rabbitmq(self) -> None:
        env = self.env("rabbitmq")
        self.processes["epmd"] = Process("epmd", ["epmd"], env, REPOSITORY, self.log / "epmd.log")
        self.start("rabbitmq")
        self.until(lambda: self.healthy("rabbitmq"), "rabbitmq to be healthy")

    def start_s3(self) -> None:
        """Parts of the server that listen beside each other in a container get ports of their own."""
        words = [f"-{part}{kind}={free_port()}" for part in ("volume", "filer") for kind in (".port", ".port.grpc")]
        words += [f"-master.port={self.port('s3', 9333)}", f"-master.port.grpc={self.port('s3', 19333)}"]
        words += ["-ip=127.0.0.1", f"-s3.port.grpc={free_port()}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        words += [f"-{part}.localSocket={self.place / part}.sock" for part in ("filer", "s3")]
        argv = [*self.argv("s3"), *words]
        self.processes["s3"] = Process("s3", argv, self.env("s3"), REPOSITORY, self.log / "s3.log")
        self.until(lambda: self.healthy("s3"), "s3 to be healthy")

    def start_prometheus(self) -> Process:
        """Its configuration, with addresses in the place of the names that Compose's network answers."""
        source, made = REPOSITORY / "ops" / "prometheus", self.place / "prometheus-config"
        shutil.copytree(source, made)
        config = yaml.safe_load((made / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            for found in job.pop("dns_sd_configs", []):
                targets = [f"127.0.0.1:{self.port(name, found['port'])}" for name in found["names"]]
                job.setdefault("static_configs", []).append({"targets": targets})
            for static in job["static_configs"]:
                static["targets"] = [
                    one.replace(":9090", f":{self.port('prometheus', 9090)}") for one in static["targets"]
                ]
        (made / "prometheus.yml").write_text(yaml.safe_dump(config))
        return self.start("prometheus")

    def run(self, service: str, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`docker compose exec SERVICE …`"""
        return self.run_with(self.env(service), *argv, timeout_s=timeout_s)

    def run_with(self, env: Mapping[str, str], *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=dict(env), cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s)

    def healthy(self, name: str) -> bool:
        """By the check that stands in the file."""
        kind, *words = self.services[name]["healthcheck"]["test"]
        words = [self.here(name, word) for word in words]
        if name == "redis" and shutil.which("redis-cli", path=self.env(name)["PATH"]) is None:
            return self._redis_answers()
        return self.run(name, *(["sh", "-c", *words] if kind == "CMD-SHELL" else words)).returncode == 0

    def until(self, condition: Any, what: str, within_s: float = _START_S) -> None:
        def look() -> bool:
            for name, process in self.processes.items():
                if name != "migrate" and not process.lives:
                    raise RuntimeError(f"{name} ended:\n{process.log.read_text(errors='replace')[-3000:]}")
            return bool(condition())

        try:
            wait_until(look, what, within_s)
        except TimeoutError as error:
            tails = "".join(
                f"\n── {p.name} ──\n{p.log.read_text(errors='replace')[-1500:]}" for p in self.processes.values()
            )
            raise TimeoutError(f"{error}{tails}") from None

    def _redis_answers(self) -> bool:
        import redis

        try:
            with redis.Redis.from_url(self.secret("redis_url")) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def _node(self) -> dict[str, str]:
        """What keeps a node of RabbitMQ to itself on a host."""
        folder = self.place / "home" / "rabbitmq"
        (self.place / "plugins").write_text("[].\n")
        return {
            "ERL_EPMD_PORT": self.port("rabbitmq", 5432), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"dlpipe-{self.port('rabbitmq', 5672)}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": self.port("rabbitmq", 5555),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"), "RABBITMQ_LOG_BASE": str(self.log / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(folder / "pid"), "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.place / "plugins"), "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -noinput",
        }  # fmt: skip

    def _make_secrets(self, broker: str) -> None:
        command = ["sh", "ops/secrets.sh", "--broker", broker, str(self.secrets)]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
        for file in ("database_url", "redis_url", "broker_url"):
            path = self.secrets / file
            url = make_url(path.read_text())
            assert url.host in self.services
            path.chmod(0o600)
            path.write_text(path.read_text().replace(
                f"@{url.host}:{url.port}", f"@127.0.0.1:{self.port(str(url.host), str(url.port))}"))  # fmt: skip

        config = self.secrets / "rabbitmq.conf"
        config.chmod(0o600)
        config.write_text(self.here("rabbitmq", config.read_text()))

    def _make_images(self) -> None:
        """The programs that the images have, under the names that they have there."""
        folder = self.place / "bin"
        weed = Path(sys.executable).with_name("weed")
        programs = {
            "celery": [sys.executable, "-m", "celery"],
            "dlpipe": [sys.executable, "-m", "dlpipe"],
            "python": [sys.executable],
            "redis-server": [server_binary()],
            "pg_isready": [str(postgres.programs() / "pg_isready"), "--port", self.port("postgres", 5432)],
            **({"weed": [str(weed)]} if weed.is_file() else {}),
            **{
                name: [str(_RABBITMQ / name)]
                for name in ("rabbitmq-server", "rabbitmq-diagnostics")
                if _RABBITMQ.is_dir()
            },
        }
        for name, words in programs.items():
            (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (folder / name).chmod(0o755)

    # ── ending ──

    def stop(self) -> dict[str, int | None]:
        """End all as `docker compose stop` does; answers with what each ended, None where it had to be killed."""
        ended: dict[str, int | None] = {}
        for name, process in reversed(list(self.processes.items())):
            grace = float(str(self.services.get(name, {}).get("stop_grace_period", "10s")).removesuffix("s"))
            ended[name] = process.ended_with(signal.SIGTERM, grace)
        self.processes.clear()
        return ended

    def __enter__(self) -> Compose:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(list(self.processes.values())):
            process.stop()
        if self._database is not None:
            self._database.stop()
        shutil.rmtree(self.place, ignore_errors=True)
