"""The composition root: from settings to adapters. Nothing else builds one.

Everything is made when first used and once per process; a forked child makes its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe import settings as knobs
from dlpipe.core import crash
from dlpipe.core.downloads import Removal, Sharing
from dlpipe.core.errors import Misconfigured
from dlpipe.core.events import Silent
from dlpipe.core.figures import Totals, Waiting
from dlpipe.core.flow import Queue
from dlpipe.core.layout import Equal
from dlpipe.core.model import Scope
from dlpipe.core.nodes import NodePolicy
from dlpipe.core.ports import BlobStore, Publisher, Staging, Telemetry, TorrentClient
from dlpipe.core.quota import QuotaPolicy
from dlpipe.core.resume import ResumePolicy
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.segments import SegmentPolicy
from dlpipe.core.torrents import TorrentPolicy
from dlpipe.db import SqlDatabase, fresh
from dlpipe.db.migrate import migrate
from dlpipe.embedded.files import FileLock, refuse_foreign
from dlpipe.embedded.nursery import Nursery
from dlpipe.embedded.redis import PrivateRedis, is_owned
from dlpipe.embedded.service import Service
from dlpipe.embedded.stack import Stack, running
from dlpipe.embedded.tether import die_with_parent
from dlpipe.lease.beat import SingleFlight
from dlpipe.lease.connect import connect
from dlpipe.lease.ending import Ending
from dlpipe.lease.lock import RedisLeases
from dlpipe.lease.progress import RedisProgress
from dlpipe.lease.reservations import RedisReservations
from dlpipe.lease.watch import RedisWatch
from dlpipe.pipeline import nodes
from dlpipe.pipeline.deps import Deps, HealPolicy, Policy, StreamPolicy
from dlpipe.pipeline.settling import settle
from dlpipe.pipeline.top import Watcher
from dlpipe.pipeline.torrents import DownloadPolicy, Messages, TorrentDeps
from dlpipe.settings import Settings

if TYPE_CHECKING:
    from dlpipe.net.client import Hub
    from dlpipe.net.limits import HostLimits
    from dlpipe.net.line import RedisLine
    from dlpipe.net.policy import NetPolicy
    from dlpipe.store.archive import FileArchive
    from dlpipe.store.trash import LocalTrash
    from dlpipe.telemetry.page import Standing
    from dlpipe.telemetry.tally import Tally

__all__ = [
    "archive",
    "count_here",
    "database",
    "deps",
    "die_with_parent",
    "dress_lines",
    "end_in_grace",
    "hear_the_end",
    "idle",
    "loaded",
    "prepare",
    "private_redis",
    "settings",
    "show_metrics",
    "sign_of_life",
    "single_flight",
    "stack",
    "standing",
    "torrents",
    "trash",
]

log = logging.getLogger(__name__)
_HELPER_THREADS = 2
_LATER_S = 5.0
_SETTLED_S = 1.0
"""The workers have the processors first."""
_ARRIVED_S = 1.0
"""What lies in the kernel of answers, some MiB at most, is read within this time; else it would come twice."""
_Place = tuple[str, str | None, str | None]
"""Where a Redis is: its address, and with Sentinels the name of the master and their password."""
_lock = threading.RLock()
_built: dict[int, Deps] = {}
_counting: list[Tally] = []


@cache
def loaded() -> knobs.Loaded:
    found = knobs.load()
    chosen = found.settings
    if chosen.private_database or chosen.private_redis:
        refuse_foreign(chosen.home_dir)
    return found


def settings() -> Settings:
    return loaded().settings


def deps(publisher: Callable[[], Publisher]) -> Deps:
    """The adapters of this process."""
    with _lock:
        pid = os.getpid()
        if pid not in _built:
            _built.clear()
            _built[pid] = _build(settings(), publisher())
        return _built[pid]


def _build(chosen: Settings, publisher: Publisher) -> Deps:
    from dlpipe.net import guard, urls
    from dlpipe.net.flips import HostFlips, LocalFlips, SharedFlips
    from dlpipe.sources.http import HttpSource

    _arm_crash_points()
    ledger = database()
    net, hosts = net_policy(chosen), _host_limits(chosen)
    line = redis_client()
    return Deps(
        database=ledger,
        leases=_leases(),
        store=blob_store(chosen),
        staging=_staging(chosen),
        source=HttpSource(_hub(chosen, net)),
        publisher=publisher,
        progress=RedisProgress(line),
        reservations=RedisReservations(line),
        flips=HostFlips(SharedFlips(host_line(chosen, os.getpid())), LocalFlips()),
        parse_url=urls.parse,
        policy=policy(chosen),
        forbidden=lambda host, port: guard.forbidden(host, port, net),
        sniffs=lambda host: hosts.of(host).sniff,
        telemetry=telemetry(),
    )


def _staging(chosen: Settings) -> Staging:
    from dlpipe.store import LocalStaging

    own_disk = chosen.store.url is not None
    return LocalStaging(
        chosen.store_root,
        chosen.stream.preallocate_bytes,
        # Who reads it again to send it to a bucket had better find it in memory.
        chosen.stream.uncached_bytes if chosen.store.url is None else None,
        node=chosen.own_node,
        own_disk=own_disk,
    )


def sign_of_life(kinds: Sequence[Queue]) -> bool:
    """Of a worker's main process, which may fork: it makes nothing but what children can take over."""
    chosen = settings()
    here = policy(chosen).nodes
    return here is not None and nodes.beat(database(), _staging(chosen), here, kinds)


def folder_store(chosen: Settings) -> BlobStore:
    from dlpipe.store import Linking, LocalBlobStore, Rehash

    return LocalBlobStore(
        chosen.store_root,
        shard_width=chosen.store.shard_width,
        linking=Linking(chosen.dedupe.link),
        rehash=Rehash(chosen.finalize.rehash),
    )


def blob_store(chosen: Settings) -> BlobStore:
    """The folder; with a bucket, that one first, and the folder for what it holds from before."""
    folder = folder_store(chosen)
    if chosen.store.url is None:
        return folder
    try:
        from dlpipe.store.bucket import Bucket, connect
        from dlpipe.store.objects import ObjectBlobStore
    except ImportError:
        raise Misconfigured(
            "store.url needs obstore, which is not installed",
            code="driver_missing",
            hint="pip install 'dlpipe[s3]'",
        ) from None
    from dlpipe.store.routed import RoutedBlobStore

    bucket = connect(
        chosen.store.url,
        knobs.bucket_options(chosen),
        allow_http=chosen.store.allow_http,
        timeout_s=chosen.store.timeout_s,
        retries=chosen.store.retries,
    )
    objects = ObjectBlobStore(
        Bucket(bucket, multipart_bytes=chosen.store.multipart_bytes),
        chosen.store.space,
        chosen.store.url,
        shard_width=chosen.store.shard_width,
        equal=Equal(chosen.dedupe.objects),
        read_back=chosen.store.reads_back,
    )
    return RoutedBlobStore(objects, folder)


def policy(chosen: Settings) -> Policy:
    retry = RetryPolicy(
        max_attempts=chosen.retry.max_attempts,
        base_s=chosen.retry.base_s,
        cap_s=chosen.retry.cap_s,
        server_cap_s=chosen.retry.server_cap_s,
        postpone_max_s=chosen.retry.postpone_max_s,
        room_max_s=chosen.quota.wait_max_s,
    )
    beat_s, gone_after_s = chosen.nodes.beat_s, chosen.nodes.gone_after_s
    return Policy(
        retry=retry,
        resume=ResumePolicy(enabled=chosen.stream.resume, prefix_bytes=chosen.stream.prefix_bytes),
        stream=StreamPolicy(**{one.name: getattr(chosen.stream, one.name) for one in fields(StreamPolicy)}),
        segments=SegmentPolicy(
            connections=chosen.stream.segments,
            min_bytes=chosen.stream.segments_min_bytes,
            per_host=chosen.stream.segments_per_host,
            piece_bytes=chosen.stream.piece_bytes,
        ),
        quota=QuotaPolicy(floor_bytes=chosen.quota.floor_bytes, margin=chosen.quota.margin),
        lease_ttl_s=chosen.lease.ttl_s,
        dedupe_scope=chosen.dedupe.scope,
        trust_s=chosen.dedupe.trust_s,
        window=chosen.dispatch.window,
        window_per_host=chosen.dispatch.window_per_host,
        lost_after_s=chosen.dispatch.lost_after_s,
        heal=HealPolicy(
            deadline_s=chosen.heal.deadline_s,
            items=chosen.heal.items_per_round,
            rehash_bytes=chosen.heal.rehash_bytes_per_round,
            grace_s=chosen.heal.file_grace_s,
            part_age_s=chosen.heal.part_age_s,
            max_missing=chosen.heal.max_missing,
        ),
        nodes=NodePolicy(chosen.own_node, beat_s, gone_after_s, retry) if chosen.own_node else None,
    )


def torrents(publisher: Callable[[], Publisher], messages: Messages) -> TorrentDeps:
    """What follows torrents; Misconfigured when no qBittorrent is set."""
    chosen = settings().torrents
    if chosen.url is None or chosen.save_path is None:
        raise Misconfigured(
            "no qBittorrent is set",
            code="torrents_not_set",
            hint="Set DLPIPE_TORRENTS_URL and DLPIPE_TORRENTS_SAVE_PATH, and how to log in (docs/torrents.md).",
        )
    base = deps(publisher)
    return TorrentDeps(
        base=base,
        client=lambda: _torrent_client(os.getpid()),
        messages=messages,
        policy=DownloadPolicy(
            save_path=chosen.save_path,
            local_path=str((chosen.local_path or Path(chosen.save_path)).expanduser().absolute()),
            watch=TorrentPolicy(chosen.grace_s, chosen.stall_s, chosen.stalled_max_s),
            batch=chosen.batch,
            every_s=chosen.every_s,
            retry=RetryPolicy(max_attempts=chosen.attempts, base_s=chosen.base_s, cap_s=chosen.cap_s),
            removal=Removal(chosen.removal),
            sharing=Sharing(chosen.sharing),
            max_files=chosen.max_files,
            register_attempts=chosen.register_attempts,
        ),
    )


@cache
def _torrent_client(_pid: int) -> TorrentClient:
    """One per process: it keeps its login, and remembers a refused one."""
    from dlpipe.sources import qbittorrent_api
    from dlpipe.sources.http import HttpSource
    from dlpipe.sources.qbittorrent import QBittorrent
    from dlpipe.sources.torrent_file import fetcher

    chosen = settings().torrents
    api = qbittorrent_api.make(
        chosen.url or "",
        username=chosen.user or "",
        password=chosen.password.get_secret_value() if chosen.password else "",
        api_key=chosen.api_key.get_secret_value() if chosen.api_key else "",
        ca_file=str(chosen.ca_file) if chosen.ca_file else None,
    )
    return QBittorrent(api, fetcher(HttpSource(_hub(settings(), net_policy(settings())))))


def net_policy(chosen: Settings) -> NetPolicy:
    from dlpipe.net.policy import NetPolicy

    return NetPolicy(
        connect_s=chosen.net.connect_s,
        read_s=chosen.net.read_s,
        retries=chosen.net.retries,
        max_retry_sleep_s=chosen.net.max_retry_sleep_s,
        max_retry_after_s=chosen.retry.server_cap_s,
        max_wait_s=chosen.net.max_wait_s,
        slot_ttl_s=chosen.net.slot_ttl_s,
        breaker_failures=chosen.net.breaker_failures,
        breaker_open_s=chosen.net.breaker_open_s,
        no_reuse_s=chosen.net.no_reuse_s,
        max_redirects=chosen.net.max_redirects,
        allow_https_to_http=chosen.net.allow_https_to_http,
        allow_private=chosen.allow_private,
        ports=frozenset(chosen.net.ports),
        volatile_params=frozenset(name.lower() for name in chosen.net.volatile_params),
        ca_file=str(chosen.net.ca_file) if chosen.net.ca_file else None,
        offline=chosen.offline,
    )


def _host_limits(chosen: Settings) -> HostLimits:
    from dlpipe.net import limits

    return limits.read(chosen.net.limits_file, limits.Bounds(chosen.net.rate_per_s, chosen.net.slots_per_host))


def _hub(chosen: Settings, policy: NetPolicy) -> Hub:
    from dlpipe.net.cache import MIB, CachePolicy
    from dlpipe.net.client import Hub

    return Hub(
        policy,
        limits=_host_limits(chosen),
        line=host_line(chosen, os.getpid()),
        caching=CachePolicy(chosen.http_cache, chosen.net.cache_mib * MIB, chosen.net.cache_ttl_s)
        if chosen.net.cache
        else None,
    )


def host_line(chosen: Settings, pid: int) -> RedisLine:
    """Where the processes agree about hosts."""
    return _host_line(_redis_place(chosen), pid)


@cache
def _host_line(place: _Place, _pid: int) -> RedisLine:
    from dlpipe.net.line import RedisLine

    # A client of its own: who waits for a turn at a host must not wait long for Redis to say so.
    client = _redis(place, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))
    return RedisLine(client)


@cache
def database() -> SqlDatabase:
    """The ledger, checked; the embedded one is made when it is not there yet, and that is said."""
    chosen = settings()
    made = open_database(chosen)
    if chosen.private_database and made.sqlite_file is not None:
        _make_if_absent(made, made.sqlite_file)
    made.check_schema()
    # With its last connection SQLite puts its journal into the file; without an interpreter's own end none is closed.
    atexit.register(made.close)
    return made


def open_database(chosen: Settings) -> SqlDatabase:
    """The ledger, as it is: not made, and not checked."""
    from dlpipe.db.sessions import Sessions

    kept = chosen.database
    return SqlDatabase(
        chosen.database_uri,
        pool_size=kept.pool_size,
        sessions=Sessions(
            pool_size=kept.pool_size,
            pool_overflow=kept.pool_overflow,
            pool_wait_s=kept.pool_wait_s,
            recycle_s=kept.recycle_s,
            connect_s=kept.connect_s,
            statement_s=kept.statement_s,
            lock_s=kept.lock_s,
        ),
    )


def _make_if_absent(ledger: SqlDatabase, file: Path) -> None:
    with _usable(file.parent):
        file.touch(mode=0o600)  # request URLs in it can hold secrets
    if ledger.schema_version() is not None:
        return
    lock = FileLock(file.parent / "run" / "migrate.lock")
    while not lock.try_acquire():  # another process is making it
        time.sleep(0.02)
    try:
        if ledger.schema_version() is None:
            version = fresh.make(ledger) or migrate(ledger)[1]
            log.warning("made a new ledger at %s (schema %s)", file, version)
    finally:
        lock.release()


@contextmanager
def _usable(home: Path) -> Iterator[None]:
    """Make the data directory; Misconfigured when it, or what is done in it, is refused."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "run").mkdir(mode=0o700, exist_ok=True)
        yield
    except OSError as error:
        raise Misconfigured(
            f"the data directory {home} cannot be used: {error.strerror or type(error).__name__}",
            code="home_unusable",
            hint="Set DLPIPE_HOME to a directory that this user may make and write to.",
        ) from None


def archive(directory: Path | None, format_: str) -> FileArchive:
    """Where purged jobs are written down; in the data directory unless another one is named."""
    from dlpipe.store.archive import FileArchive

    return FileArchive(directory or settings().home_dir / "archive", format_)


def trash() -> LocalTrash:
    from dlpipe.store.trash import LocalTrash

    return LocalTrash(settings().store_root)


@cache
def redis_client() -> redis.Redis:
    return _redis(_redis_place(settings()), socket_timeout=10, socket_connect_timeout=5, health_check_interval=30)


def _redis_place(chosen: Settings) -> _Place:
    secret = chosen.redis.sentinel_password
    return chosen.redis_uri, chosen.lease_master, secret.get_secret_value() if secret else None


def _redis(place: _Place, **options: Any) -> redis.Redis:
    url, master, password = place
    return connect(url, master=master, sentinel_password=password, **options)


@cache
def _leases() -> RedisLeases:
    chosen = settings()

    def mirror(claims: Sequence[tuple[str, int]], ttl_s: float) -> set[str]:
        return settle(database(), lambda unit: unit.jobs.renew(claims, ttl_s))

    lease, hold_s = chosen.lease, chosen.hold_max_s
    return RedisLeases(redis_client(), ttl_s=lease.ttl_s, renew_s=lease.renew_s, hold_s=hold_s, mirror=mirror)


@cache
def watch() -> RedisWatch:
    return RedisWatch(_impatient_redis())


def watcher(publisher: Callable[[], Publisher], scope: Scope) -> Watcher:
    """What looks at all of it again and again, and waits for nobody long."""
    chosen = settings()
    progress = RedisProgress(_impatient_redis())
    return Watcher(database(), progress, watch(), publisher(), policy(chosen), scope, idle=idle)


@cache
def _impatient_redis() -> redis.Redis:
    return _redis(_redis_place(settings()), socket_timeout=1, socket_connect_timeout=1)


def single_flight(name: str, ttl_s: float) -> SingleFlight:
    chosen = settings()
    rest_s = min(1.0, chosen.dispatch.every_s / 2, chosen.heal.every_s / 2, chosen.torrents.every_s / 2)
    return SingleFlight(redis_client(), name, ttl_s, rest_s)


def private_redis() -> PrivateRedis | None:
    """The server this machine runs for itself, when nothing says that there is another."""
    chosen = settings()
    return PrivateRedis(chosen.home_dir) if chosen.private_redis else None


def idle() -> bool:
    """Is it certain that no worker runs? All those of this data directory need its private Redis."""
    chosen = settings()
    return chosen.private_redis and not is_owned(chosen.home_dir) and running(chosen.home_dir) is None


def stack(
    on_worker_death: Callable[[int], object],
    *,
    few_first: bool = False,
    ready: bool = False,
    nursery: Nursery | None = None,
) -> Stack | None:
    """The processes behind `fetch` and `up`; None when Redis is elsewhere, and with it the workers.

    `few_first`: those that carry a job through start at once, the others when that did not do for a moment.
    `ready`: with a process that carries out commands for others. `nursery`: what forks workers quickly (ADR 40).
    """
    chosen, own = settings(), private_redis()
    if own is None:
        return None
    with _usable(chosen.home_dir):
        pass
    # Not the caller's folder: a celeryconfig.py of somebody else's project may lie there.
    celery = [sys.executable, "-P", "-m", "celery", "--workdir", str(chosen.home_dir), "-A", "dlpipe"]
    quiet = ["--without-mingle", "--without-gossip", "-l", chosen.log_level]

    port = chosen.metrics.port

    count = chosen.worker.processes

    def worker(number: int, service: str, node: str, threads: int, *which: str) -> Service:
        pool = ["-P", "threads", "-c", str(threads), *which]
        # Each has a page of its own, on the ports from the set one on.
        env = {} if port is None else {"DLPIPE_METRICS_PORT": str(port + number)}
        later = few_first and 0 < number < count
        command = [*celery, "worker", *pool, "-n", f"{node}@%h", *quiet]
        return Service(service, command, env, after_s=_LATER_S if later else 0.0)

    # What a worker has streamed it also publishes, in the same hand (ADR 42).
    both = ("-Q", f"{Queue.NET.value},{Queue.DISK.value}")
    workers = [worker(n, f"worker{n + 1}", f"w{n + 1}", chosen.worker.threads, *both) for n in range(count)]
    # One for all other queues, those of a celeryconfig.py as well: slow servers can hold every thread of the
    # workers, and finished files must not wait for them.
    helper = worker(count, "helper", "helper", _HELPER_THREADS, "-X", Queue.NET.value)
    schedule = chosen.home_dir / "run" / "beat-schedule"
    beats = [*celery, "beat", "-s", str(schedule), "--pidfile", "", "-l", chosen.log_level]
    beat = Service("beat", beats, after_s=_LATER_S if few_first else 0.0)
    more = [_ready_process(chosen)] if ready and chosen.worker.ready and sys.platform.startswith("linux") else []
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**loaded().handed_on, "DLPIPE_HOME": str(chosen.home_dir), "PYTHONPATH": path}
    return Stack(chosen.home_dir, [*workers, helper, beat, *more], own, env, on_worker_death, nursery=nursery)


def _ready_process(chosen: Settings) -> Service:
    argv = [sys.executable, "-P", "-m", "dlpipe.cli.ready", str(chosen.home_dir)]
    return Service("ready", argv, after_s=_SETTLED_S, eases=True)


@cache
def prepare() -> None:
    """Before a worker or a beat starts: what the embedded default has to have running."""
    own = private_redis()
    if own is not None:
        with _usable(settings().home_dir):
            own.keep()
    database()


# ── telemetry ─────────────────────────────────────────────────────────────────────────────────────


def count_here() -> None:
    """In a worker's main process, before it forks: from now on it and its children count together (ADR 30)."""
    if settings().metrics.port is not None and not _counting:
        from dlpipe.telemetry.board import Board
        from dlpipe.telemetry.tally import Tally

        _counting.append(Tally(Board()))


def telemetry() -> Telemetry:
    return _counting[0] if _counting else Silent()


def show_metrics(depths: Callable[[], Mapping[str, int]]) -> None:
    """Serve the page, once the first children are there: they need not know of its socket."""
    chosen = settings().metrics
    if chosen.port is not None and _counting:
        from dlpipe.telemetry import page

        page.serve(chosen.listen, chosen.port, [page.Happened(_counting[0].read), standing(depths)])


def standing(depths: Callable[[], Mapping[str, int]] | None = None) -> Standing:
    """What stands in the ledger, and waits in the broker, as figures that are asked for now and then."""
    from dlpipe.telemetry.page import Paced, Standing

    def waiting() -> Waiting:
        with database().read() as unit:
            return unit.figures.waiting()

    def totals() -> Totals:
        with database().read() as unit:
            return unit.figures.totals()

    every_s = settings().metrics.refresh_s
    return Standing(Paced(waiting, every_s), Paced(totals, every_s), Paced(depths, every_s) if depths else None)


def dress_lines(logger: logging.Logger, tasks: Collection[str]) -> None:
    """Let a logger of Celery's write our lines; of `tasks` Celery itself says nothing but errors."""
    from dlpipe.telemetry import lines

    for one in (logger, logging.getLogger("multiprocessing")):
        lines.dress(one, settings().log_format)
    for name in ("celery.app.trace", "celery.worker.strategy"):
        spoken = logging.getLogger(name)
        if not any(isinstance(one, lines.Unless) for one in spoken.filters):
            spoken.addFilter(lines.Unless(tasks))
    # All that it has to say, at the level DEBUG, is what is in each message.
    logging.getLogger("celery.pool").setLevel(logging.INFO)


@cache
def _ending() -> Ending:
    return Ending()


def hear_the_end() -> None:
    """In a worker's main process before it forks, and in each child: from now on it hears that the worker is to end.

    What it is in the middle of then stops at its next chunk and is handed back.
    """
    _ending().hear(_give_back)


def _give_back() -> None:
    from dlpipe.net import client

    _leases().give_no_more()
    time.sleep(min(_ARRIVED_S, settings().worker.grace_s / 4))
    _leases().give_up()
    client.hang_up()


def end_in_grace() -> None:
    """This worker is told to end: all its processes give up their leases, and after the grace time it is gone."""
    _ending().say()
    threading.Thread(target=_end_by_force, name="dlpipe-grace", daemon=True).start()


def _end_by_force() -> None:
    time.sleep(settings().worker.grace_s)
    log.warning("not at an end %s s after it was told to: this worker ends by force", settings().worker.grace_s)
    # Not by an exception: a thread that waits for a silent server would be waited for. The children end with this
    # process, and what they held is handed on as that of the dead.
    os._exit(1)


def _arm_crash_points() -> None:
    """Only for the crash suite: end this process at the named point, as the kernel would."""
    wanted = os.environ.get(knobs.CRASH_ENV)
    if not wanted:
        return

    def hook(name: str) -> None:
        if name == wanted:
            os.kill(os.getpid(), 9)

    crash.arm(hook)
