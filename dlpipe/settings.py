"""Every knob, typed, with its source: defaults, then a TOML file, then the environment (OPS-9).

`[lease] ttl_s` in the file is DLPIPE_LEASE_TTL_S in the environment. Unknown and contradictory settings are
an error at start; secrets are never printed, and DLPIPE_DATABASE_URL_FILE names a file that holds one. Relative paths
are those of the folder in which settings are loaded.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import socket
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from dlpipe.core.addresses import for_celery, for_redis, is_redis, objection
from dlpipe.core.errors import Misconfigured
from dlpipe.core.nodes import MISSED_BEATS
from dlpipe.embedded.redis import socket_path
from dlpipe.lease.connect import SENTINEL, connect

PREFIX = "DLPIPE_"
FILE_SUFFIX = "_FILE"
CONFIG_ENV = "DLPIPE_CONFIG"
CRASH_ENV = "DLPIPE_CRASH_POINT"
_NOT_SETTINGS = frozenset({CONFIG_ENV, CRASH_ENV})
_SECRET_BYTES = 65_536
_PATHS = (
    "home",
    "store.root",
    "net.limits_file",
    "net.ca_file",
    "broker.ca_file",
    "store.credentials_file",
    "torrents.ca_file",
    "torrents.local_path",
)
_BUCKET = re.compile(r"(?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]{1,62}(?:/[A-Za-z0-9._=-]+)*/?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|file:|:memory:)([^?]+)(.*)", re.DOTALL)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lease(_Section):
    """How long a worker may act on a job without a sign of life."""

    ttl_s: float = Field(120.0, gt=0, le=86_400)
    renew_s: float = Field(35.0, gt=0)
    hold_max_s: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _possible(self) -> Lease:
        if self.renew_s >= self.ttl_s / 2:
            raise ValueError("renew_s must be less than half of ttl_s, or one missed renewal loses the lease")
        return self


class Store(_Section):
    """Files in a folder, or, with `url`, in a bucket; parts on their way are always below `root`."""

    root: Path | None = None
    staging: Literal["shared", "node"] = "shared"
    shard_width: int = Field(2, ge=0, le=8)
    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False
    credentials_file: Path | None = None
    proof: Literal["auto", "checksum", "read"] = "auto"
    multipart_bytes: int = Field(16 << 20, ge=5 << 20, le=1 << 30)
    timeout_s: float = Field(60.0, gt=0, le=3_600)
    retries: int = Field(3, ge=0, le=20)

    @model_validator(mode="after")
    def _usable(self) -> Store:
        if self.url is not None and not _BUCKET.fullmatch(self.url):
            raise ValueError(
                "url must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, without anything secret"
            )
        if self.endpoint is not None and not re.fullmatch(r"https?://[^@?#\s]+", self.endpoint):
            raise ValueError("endpoint must be an address without user name, password or query")
        if self.endpoint is not None and self.endpoint.startswith("http://") and not self.allow_http:
            raise ValueError("endpoint is not encrypted: say allow_http if that is meant")
        return self

    @property
    def space(self) -> str:
        """What pointers to new files begin with."""
        return (self.url or "local:").partition(":")[0]

    @property
    def reads_back(self) -> bool:
        """Of S3 alone it is known that the server checks a sha256 that comes with the bytes."""
        return self.proof == "read" or (self.proof == "auto" and self.space != "s3")


class Dedupe(_Section):
    scope: Literal["tenant", "project", "global"] = "tenant"
    trust_s: float = Field(86_400.0, ge=0)
    link: Literal["hardlink", "reflink", "off"] = "hardlink"
    objects: Literal["pointer", "copy"] = "pointer"


class Retry(_Section):
    max_attempts: int = Field(5, ge=1, le=1_000)
    base_s: float = Field(2.0, gt=0)
    cap_s: float = Field(300.0, gt=0)
    server_cap_s: float = Field(3_600.0, gt=0)
    postpone_max_s: float = Field(604_800.0, gt=0)


class Net(_Section):
    connect_s: float = Field(10.0, gt=0)
    read_s: float = Field(60.0, gt=0)
    retries: int = Field(3, ge=0, le=20)
    max_retry_sleep_s: float = Field(5.0, ge=0, le=60)
    max_redirects: int = Field(10, ge=0, le=50)
    allow_https_to_http: bool = False
    ports: tuple[int, ...] = (80, 443, 8080, 8443)
    volatile_params: tuple[str, ...] = (
        "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Security-Token", "X-Amz-Signature",
        "X-Amz-SignedHeaders", "X-Goog-Algorithm", "X-Goog-Credential", "X-Goog-Date", "X-Goog-Expires",
        "X-Goog-Signature", "X-Goog-SignedHeaders", "AWSAccessKeyId", "Expires", "Signature", "Key-Pair-Id", "Policy",
        "se", "sig", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "st", "sv",
    )  # fmt: skip
    """Of signed links; see NetPolicy."""
    rate_per_s: float = Field(100.0, ge=0)
    """Requests to one host by all workers together; 0 for no limit, as for slots_per_host."""
    slots_per_host: int = Field(32, ge=0, le=10_000)
    slot_ttl_s: float = Field(30.0, ge=1)
    max_wait_s: float = Field(3.0, ge=0, le=60)
    limits_file: Path | None = None
    ca_file: Path | None = None
    """Certificates to trust beside the public ones."""
    no_reuse_s: float = Field(86_400.0, ge=1, le=2_592_000)
    """For so long no connection is used twice to an origin that sent bytes belonging to no answer."""
    breaker_failures: int = Field(10, ge=0, le=10_000)
    breaker_open_s: float = Field(30.0, gt=0, le=86_400)
    cache: bool = True
    cache_mib: int = Field(32, ge=1, le=4_096)
    cache_ttl_s: float = Field(300.0, gt=0)


class Stream(_Section):
    max_bytes: int | None = Field(None, ge=0)
    deadline_s: float = Field(21_600.0, gt=0)
    min_rate_bytes_s: float = Field(1_024.0, ge=0)
    min_rate_window_s: float = Field(60.0, gt=0)
    requests_per_mib: int = Field(64, ge=1, le=1 << 20)
    max_restarts: int = Field(2, ge=0, le=10)
    accept_unproven_length: bool = False
    sniff: bool = True
    resume: bool = True
    preallocate_bytes: int | None = Field(64 << 20, ge=1)
    uncached_bytes: int | None = Field(256 << 20, ge=1)
    overlap_bytes: int = Field(65_536, ge=0, le=16 << 20)
    prefix_bytes: int = Field(0, ge=0, le=16 << 20)
    segments: int = Field(1, ge=1, le=16)
    segments_min_bytes: int = Field(64 << 20, ge=1 << 20)
    segments_per_host: int = Field(4, ge=1, le=64)
    piece_bytes: int = Field(4 << 20, ge=1 << 20, le=4 << 20)


class Finalize(_Section):
    """`auto`: what nobody touched since it was hashed and durable, on a local disk, is not read again (ADR 39)."""

    rehash: Literal["auto", "always"] = "auto"


class Quota(_Section):
    """Room that downloads leave on the store's volume; `margin` is what a file may take beyond its bytes."""

    floor_bytes: int = Field(256 << 20, ge=0)
    margin: float = Field(1.05, ge=1.0, le=10.0)
    wait_max_s: float = Field(86_400.0, gt=0)


class Database(_Section):
    """Of a ledger in PostgreSQL: the pool of each process, and how long it waits for anything."""

    pool_size: int = Field(8, ge=1, le=1_000)
    pool_overflow: int = Field(8, ge=0, le=1_000)
    pool_wait_s: float = Field(30.0, gt=0, le=3_600)
    recycle_s: float = Field(1_800.0, gt=0)
    connect_s: float = Field(10.0, ge=2, le=600)
    statement_s: float = Field(60.0, gt=0, le=86_400)
    lock_s: float = Field(20.0, gt=0, le=86_400)

    @model_validator(mode="after")
    def _possible(self) -> Database:
        if self.lock_s >= self.statement_s:
            raise ValueError("lock_s must be less than statement_s, which ends a statement that waits as well")
        return self


class Dispatch(_Section):
    every_s: float = Field(2.0, gt=0)
    window: int = Field(2_000, ge=1)
    window_per_host: int = Field(500, ge=1)
    lost_after_s: float = Field(20.0, gt=0)


class Heal(_Section):
    """Reconcile: how often, how much at a time, and for how long things are left alone."""

    every_s: float = Field(60.0, gt=0)
    deadline_s: float = Field(30.0, gt=0, le=3_600)
    items_per_round: int = Field(2_000, ge=1)
    rehash_bytes_per_round: int = Field(64 << 20, ge=0)
    file_grace_s: float = Field(3_600.0, ge=0)
    part_age_s: float = Field(3_600.0, ge=0)
    max_missing: int = Field(100, ge=0)


class Nodes(_Section):
    """Signs of life of nodes whose staging folders are their own (`store.staging`)."""

    beat_s: float = Field(10.0, gt=0, le=3_600)
    gone_after_s: float = Field(120.0, gt=0, le=86_400)

    @model_validator(mode="after")
    def _possible(self) -> Nodes:
        if self.gone_after_s <= MISSED_BEATS * self.beat_s:
            raise ValueError(f"gone_after_s must be more than {MISSED_BEATS} times beat_s, or a busy node is given up")
        return self


class Torrents(_Section):
    """The qBittorrent that transfers torrents for us; without `url` there is none."""

    url: str | None = None
    user: str | None = None
    password: SecretStr | None = None
    api_key: SecretStr | None = None
    ca_file: Path | None = None
    save_path: str | None = None
    local_path: Path | None = None
    every_s: float = Field(15.0, gt=0)
    batch: int = Field(100, ge=1, le=1_000)
    grace_s: float = Field(60.0, ge=0)
    stall_s: float = Field(600.0, gt=0)
    stalled_max_s: float = Field(2_592_000.0, gt=0)
    attempts: int = Field(10, ge=1, le=1_000)
    register_attempts: int = Field(1_500, ge=1, le=1_000_000)
    base_s: float = Field(5.0, gt=0)
    cap_s: float = Field(600.0, gt=0)
    removal: Literal["keep", "remove", "remove_with_files"] = "remove"
    sharing: Literal["link", "clone", "copy"] = "link"
    max_files: int = Field(10_000, ge=1)

    @model_validator(mode="after")
    def _usable(self) -> Torrents:
        if self.url is not None and "@" in self.url:
            raise ValueError("url must not hold a user name or a password, as it is shown; there are settings for both")
        if self.url is not None and (self.save_path is None or not self.save_path.startswith("/")):
            raise ValueError("save_path must name the download folder as qBittorrent sees it, beginning with /")
        return self


class Worker(_Section):
    """`processes`, `threads` and `ready` are those of the one-machine stack; the others hold for every worker.

    `in_hand`: who has done a stage does the next one as well, if it would take its message anyway.
    """

    processes: int = Field(2, ge=1, le=64)
    threads: int = Field(4, ge=1, le=256)
    grace_s: float = Field(25.0, gt=0, le=86_400)
    ready: bool = True
    in_hand: bool = True


class Metrics(_Section):
    """The page for Prometheus; without `port` there is none."""

    listen: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65_000)
    refresh_s: float = Field(10.0, ge=0)

    @model_validator(mode="after")
    def _an_address(self) -> Metrics:
        try:
            ipaddress.ip_address(self.listen)
        except ValueError:
            raise ValueError("listen must be an IP address, for example 127.0.0.1") from None
        return self


class Broker(_Section):
    """`quorum` and `ca_file` are for RabbitMQ. `old_queues`: take also from those of the release before the prefix."""

    queue_prefix: str = Field("dlpipe.", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    old_queues: bool = True
    ack_emulation: bool = False
    quorum: bool = True
    ca_file: Path | None = None
    sentinel_master: str | None = None


class Redis(_Section):
    """For addresses of Sentinels: what they call the server, and how to log in to them."""

    sentinel_master: str | None = None
    sentinel_password: SecretStr | None = None


class Settings(_Section):
    home: Path = Path("dlpipe-data")
    database_url: SecretStr | None = None
    redis_url: SecretStr | None = None
    broker_url: SecretStr | None = None
    node: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"
    allow_private: bool = False
    offline: bool = False
    database: Database = Database()
    lease: Lease = Lease()
    store: Store = Store()
    dedupe: Dedupe = Dedupe()
    retry: Retry = Retry()
    net: Net = Net()
    stream: Stream = Stream()
    finalize: Finalize = Finalize()
    quota: Quota = Quota()
    dispatch: Dispatch = Dispatch()
    heal: Heal = Heal()
    nodes: Nodes = Nodes()
    torrents: Torrents = Torrents()
    worker: Worker = Worker()
    broker: Broker = Broker()
    redis: Redis = Redis()
    metrics: Metrics = Metrics()

    @model_validator(mode="after")
    def _held_long_enough(self) -> Settings:
        if self.lease.hold_max_s is not None and self.lease.hold_max_s <= self.stream.deadline_s:
            raise ValueError("lease.hold_max_s must be more than stream.deadline_s, or a long download loses its lease")
        return self

    @property
    def hold_max_s(self) -> float:
        """For so long a worker may hold one job in all: two days, or twice the longest download."""
        return self.lease.hold_max_s or max(172_800.0, 2 * self.stream.deadline_s)

    @model_validator(mode="after")
    def _redis_for_leases(self) -> Settings:
        if self.broker_url is not None and self.redis_url is None and not is_redis(self.broker_uri):
            raise ValueError(
                "broker_url is not a Redis, so redis_url must say where leases are kept (DLPIPE_REDIS_URL)"
            )
        return self

    @model_validator(mode="after")
    def _masters(self) -> Settings:
        if self.redis_uri.startswith(SENTINEL) and self.lease_master is None:
            raise ValueError("redis_url names Sentinels, so redis.sentinel_master must say what they call the server")
        if self.broker_uri.startswith(SENTINEL) and self.broker_master is None:
            raise ValueError("broker_url names Sentinels, so broker.sentinel_master must say what they call the server")
        return self

    @model_validator(mode="after")
    def _node_named(self) -> Settings:
        if self.store.staging == "node" and not _NODE.fullmatch(self.node):
            raise ValueError(
                "node names a queue and a folder where store.staging is node: use letters, digits, dots, dashes and "
                "underscores, 63 at most, beginning with a letter or digit"
            )
        if self.store.staging == "node" and self.node.endswith(".quorum"):
            # Its queues would be called in routes what RabbitMQ calls those of the node without that ending.
            raise ValueError("node must not end with .quorum where store.staging is node")
        return self

    @property
    def lease_master(self) -> str | None:
        return self.redis.sentinel_master or (self.broker.sentinel_master if self.redis_url is None else None)

    @property
    def broker_master(self) -> str | None:
        return self.broker.sentinel_master or self.redis.sentinel_master

    @property
    def home_dir(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def store_root(self) -> Path:
        return (self.store.root or self.home_dir / "store").expanduser().absolute()

    @property
    def own_node(self) -> str | None:
        """The name under which this machine has a staging folder and queues of its own, if it has."""
        return self.node if self.store.staging == "node" else None

    @property
    def http_cache(self) -> Path:
        return self.home_dir / "cache" / "http.db"

    @property
    def private_redis(self) -> bool:
        """Nothing says where Redis is, so this machine runs one of its own."""
        return self.redis_url is None and self.broker_url is None

    @property
    def private_database(self) -> bool:
        return self.database_url is None

    @property
    def database_uri(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.home_dir / 'ledger.db'}"

    @property
    def redis_uri(self) -> str:
        """Where leases, limits and progress are kept, as redis-py spells it."""
        if self.redis_url is not None:
            return for_redis(self.redis_url.get_secret_value())
        if self.broker_url is not None:
            return for_redis(self.broker_url.get_secret_value())
        return f"unix://{quote(str(socket_path(self.home_dir)))}?db=0"

    @property
    def broker_uri(self) -> str:
        """Where messages go, as Celery spells it."""
        if self.broker_url is not None:
            return for_celery(self.broker_url.get_secret_value())
        if self.redis_url is not None:
            return for_celery(self.redis_url.get_secret_value())
        return f"redis+socket://{quote(str(socket_path(self.home_dir)))}?virtual_host=0"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting as `dlpipe doctor` lists it."""

    name: str
    env: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings with where each is from.

    Attributes:
        file: the TOML file that was read.
        handed_on: variables that let a process in another folder, with this environment, find the same settings.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None = None
    handed_on: Mapping[str, str] = field(default_factory=dict, repr=False)

    def knobs(self) -> list[Knob]:
        found = []
        for name, env in sorted(names().items()):
            value = _get(self.settings, name)
            if name == "home" and name not in self.sources:
                value = Settings.model_fields[name].default
            shown = "(set, not shown)" if isinstance(value, SecretStr) else str(value)
            found.append(Knob(name, env, shown, self.sources.get(name, "default")))
        return found


def names() -> dict[str, str]:
    """Every setting's dotted name and its name in the environment."""
    found = {}
    for top, info in Settings.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, _Section):
            for leaf in kind.model_fields:
                found[f"{top}.{leaf}"] = f"{PREFIX}{top}_{leaf}".upper()
        else:
            found[top] = f"{PREFIX}{top}".upper()
    return found


def secret_files() -> dict[str, str]:
    """The variables that name a file instead of holding a secret, and the secret's own variable."""
    found = {}
    for name, env in names().items():
        section, _, leaf = name.rpartition(".")
        kind: Any = Settings.model_fields[section].annotation if section else Settings
        if kind.model_fields[leaf].annotation == SecretStr | None:
            found[f"{env}{FILE_SUFFIX}"] = env
    return found


def load(environ: Mapping[str, str] | None = None) -> Loaded:
    """Read the settings; Misconfigured says which one is wrong and where it was set."""
    env = os.environ if environ is None else environ
    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    file = _config_file(env)
    if file is not None:
        for name, value in _flat(_read_toml(file)).items():
            if value != "":
                _put(tree, name, value)
                sources[name] = f"file {file}"
    by_env = {env_name: name for name, env_name in names().items()}
    by_file = secret_files()
    for env_name, text in env.items():
        if not env_name.startswith(PREFIX) or env_name in _NOT_SETTINGS:
            continue
        if env_name in by_file:
            if text:
                name = by_env[by_file[env_name]]
                _put(tree, name, _secret(env, env_name, by_file[env_name]))
                sources[name] = f"file {Path(text).absolute()} (environment {env_name})"
            continue
        if env_name not in by_env:
            raise _unknown(env_name, sorted([*by_env, *by_file]), "environment variable")
        if not text:
            continue
        name = by_env[env_name]
        _put(tree, name, text.split(",") if name == "net.ports" else text)
        sources[name] = f"environment {env_name}"
    try:
        given = Settings.model_validate(tree)
    except ValidationError as error:
        raise _invalid(error, sources) from None
    absolute = _absolute(given, sources)
    handed_on = {names()[name]: value for name, value in absolute.items()}
    for file_env, value_env in by_file.items():
        if env.get(file_env):
            # A relative SQLite file is named whole, so what named it must not be read once more.
            handed_on[file_env] = "" if value_env in handed_on else str(Path(env[file_env]).absolute())
    if file is not None:
        handed_on[CONFIG_ENV] = str(file)
    for name, value in absolute.items():
        _put(tree, name, value)
    chosen = Settings.model_validate(tree)
    _check_addresses(chosen, sources)
    _check_certificates(chosen, sources)
    if chosen.store.url is not None:
        bucket_options(chosen)
    return Loaded(chosen, sources, file, handed_on)


def _absolute(given: Settings, sources: Mapping[str, str]) -> dict[str, str]:
    """What was relative to the current folder, by its whole path."""
    found = {}
    for name in _PATHS:
        path: Path | None = _get(given, name)
        if path is not None and not path.is_absolute():
            found[name] = str(_whole(path, name, sources))
    if given.database_url is not None:
        relative = _SQLITE_FILE.fullmatch(given.database_url.get_secret_value())
        if relative:
            found["database_url"] = f"{relative[1]}{Path(relative[2]).absolute()}{relative[3]}"
    return found


def _whole(path: Path, name: str, sources: Mapping[str, str]) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise _wrong(name, sources, "there is no such user's home directory") from None


def _check_addresses(chosen: Settings, sources: Mapping[str, str]) -> None:
    """Let those who will use the addresses read them; nothing is connected to."""
    if chosen.database_url is not None:
        _check("database_url", chosen.database_uri, _read_database, sources)
    if chosen.broker_url is not None:
        _check("broker_url", chosen.broker_uri, partial(_read_broker, chosen.broker_master), sources)
    if not chosen.private_redis:
        name = "broker_url" if chosen.redis_url is None else "redis_url"
        _check(name, chosen.redis_uri, partial(_read_redis, chosen.lease_master), sources)
        if chosen.broker_url is None:
            _check(name, chosen.broker_uri, partial(_read_broker, chosen.broker_master), sources)


def _check_certificates(chosen: Settings, sources: Mapping[str, str]) -> None:
    """A worker would find out at its first download only."""
    for name in ("net.ca_file", "broker.ca_file"):
        file: Path | None = _get(chosen, name)
        try:
            if file is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except OSError:
            raise _wrong(name, sources, "it is not a file of certificates in PEM that can be read") from None


def bucket_options(chosen: Settings) -> dict[str, str]:
    """What reaching the bucket takes beside its address; what stands here may be secret."""
    found: dict[str, str] = {}
    if chosen.store.credentials_file is not None:
        try:
            tree = tomllib.loads(chosen.store.credentials_file.expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Misconfigured(
                f"store.credentials_file cannot be read ({type(error).__name__})",
                code="setting_invalid",
                hint='It is lines of NAME = "VALUE" (docs/operations.md).',
            ) from None
        if not all(isinstance(value, str) for value in tree.values()):
            raise Misconfigured(
                "store.credentials_file holds something that is no text",
                code="setting_invalid",
                hint='It is lines of NAME = "VALUE" (docs/operations.md).',
            )
        found |= tree
    if chosen.store.endpoint is not None:
        found["endpoint"] = chosen.store.endpoint
    if chosen.store.region is not None:
        found["region"] = chosen.store.region
    if chosen.store.space == "s3":
        found["checksum_algorithm"] = "sha256"
    return found


def _check(name: str, url: str, read: Callable[[str], object], sources: Mapping[str, str]) -> None:
    if (why := objection(url)) is not None:
        raise _wrong(name, sources, why)
    try:
        read(url)
    except Misconfigured:
        raise
    except ImportError as error:
        postgres = url.startswith("postgresql")
        raise Misconfigured(
            f"{name} needs a driver that is not installed ({error.name or 'its library'})",
            code="driver_missing",
            hint="pip install 'dlpipe[postgres]', and begin the address with postgresql+psycopg://"
            if postgres
            else "Install the driver, or correct the address.",
        ) from None
    except Exception:
        # Each library has errors of its own for this, and their texts can hold the password.
        raise _wrong(name, sources, "it is not an address that can be used") from None


def _read_database(url: str) -> object:
    from dlpipe.db import SqlDatabase

    database = SqlDatabase(url)
    options = database.engine.dialect.create_connect_args(database.url)[1]
    if database.url.get_backend_name() == "postgresql":
        from psycopg.conninfo import make_conninfo

        make_conninfo(**{name: value for name, value in options.items() if name != "context"})
    return options


def _read_redis(master: str | None, url: str) -> object:
    return connect(url, master=master).connection_pool.make_connection()  # of which nothing is connected


def _read_broker(master: str | None, url: str) -> object:
    from kombu import Connection

    if is_redis(url):
        _read_redis(master, for_redis(url))
    made = Connection(url)
    if not isinstance(made.connect_timeout, int | float | None):
        raise TypeError("the text of an option is handed on as it is")
    return made.get_transport_cls()


def _config_file(env: Mapping[str, str]) -> Path | None:
    named = env.get(CONFIG_ENV)
    if named:
        if not Path(named).is_file():
            raise Misconfigured(
                f"{CONFIG_ENV} names a file that is not there",
                code="config_missing",
                hint="Correct the path or unset the variable.",
            )
        return Path(named).absolute()
    home_env = f"{PREFIX}HOME"
    home = _whole(Path(env.get(home_env) or "dlpipe-data"), "home", {"home": f"environment {home_env}"})
    return next((path for path in (home / "dlpipe.toml", Path("dlpipe.toml").absolute()) if path.is_file()), None)


def _secret(env: Mapping[str, str], file_env: str, value_env: str) -> str:
    """What the file holds, less the line's end. Empty is an error: unset would mean another database without a word."""
    if env.get(value_env):
        raise Misconfigured(
            f"{value_env} and {file_env} are both set", code="setting_invalid", hint="Unset one of them."
        )
    file = Path(env[file_env])
    try:
        with file.open("rb") as stream:
            text = stream.read(_SECRET_BYTES + 1).decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise Misconfigured(
            f"{file_env}: {file} cannot be read: {why}", code="setting_invalid", hint="Correct the path or the file."
        ) from None
    if not text or "\n" in text or len(text) > _SECRET_BYTES:
        raise Misconfigured(
            f"{file_env}: {file} does not hold one line", code="setting_invalid", hint="Write the value into it, alone."
        )
    return text


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, ValueError) as error:
        raise Misconfigured(
            f"{file} cannot be read: {type(error).__name__}", code="config_unreadable", hint="Correct the file."
        ) from None


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    known = names()
    found: dict[str, Any] = {}
    for top, value in tree.items():
        leaves = {f"{top}.{leaf}": v for leaf, v in value.items()} if isinstance(value, dict) else {top: value}
        for name, leaf_value in leaves.items():
            if name not in known:
                raise _unknown(name, sorted(known), "setting")
            found[name] = leaf_value
    return found


def _get(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[leaf] = value


def _unknown(name: str, known: list[str], what: str) -> Misconfigured:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return Misconfigured(
        f"{name} is not a known {what}",
        code="setting_unknown",
        hint=f"{hint}`dlpipe doctor` lists all settings.",
    )


def _wrong(name: str, sources: Mapping[str, str], why: str) -> Misconfigured:
    return Misconfigured(
        f"{name} ({sources.get(name, 'default')}): {why}",
        code="setting_invalid",
        hint="Correct the setting; `dlpipe doctor` lists all of them.",
    )


def _invalid(error: ValidationError, sources: Mapping[str, str]) -> Misconfigured:
    """Say what is wrong without repeating the value: it may be a password."""
    problems = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        name = ".".join(str(part) for part in one["loc"]) or "settings"
        where = sources.get(name)
        problems.append(f"{name}{f' ({where})' if where else ''}: {one['msg'].removeprefix('Value error, ')}")
    return Misconfigured(
        "; ".join(problems),
        code="setting_invalid",
        hint="Correct the setting; `dlpipe doctor` lists all of them.",
    )
