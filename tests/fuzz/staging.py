"""A fuzzer of the staging folder: sidecars, parts, kinds of files and names, as a process can leave them.

    python -m tests.fuzz.staging --cases 2000 --seed 7

Each case lays damage into the folders of some tenants, then lets the real stages bring one file over HTTP from a small
server, and reconcile walk over all of it. No failure may be an error of ours, no wrong byte may be published, each
tenant's old part must be removed, no job may lose an attempt to what lies there, and each case has bounded time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.store import LocalStaging
from tests import forged
from tests.pipeline import Pipeline
from tests.world import altered, blobs, sha256, some_bytes

SIZES = (1, 40_000, 65_536, 65_537, 300_000)
BODIES = {f"/{size}": some_bytes(size) for size in SIZES}
TENANTS = ("a", "m", "z")
CASE_S = 20
Damage = Callable[[random.Random, Path], None]
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 10**40, 1.5, float("inf"), float("nan"), "", "x", "\0", "\ud800",
    "\x1b[2J", "a" * 70_000, [], {}, [[]], [[1, 2, 3]], "../../etc", sha256(b""), '"v1"',
)  # fmt: skip


class _Server(BaseHTTPRequestHandler):
    """Files with an ETag, in ranges where that is asked for under it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def _answer(self, *, is_head: bool) -> None:
        body = BODIES[self.path.partition("?")[0]]
        begin = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
        ranged = begin.isdigit() and self.headers.get("If-Range") == '"v1"'
        start = int(begin) if ranged else 0
        if ranged and start >= len(body):
            self._head(416, 0, ("Content-Range", f"bytes */{len(body)}"))
            return
        more = [("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")] if ranged else []
        self._head(206 if ranged else 200, len(body) - start, *more)
        if not is_head:
            self.wfile.write(body[start:])

    def _head(self, status: int, length: int, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(length)), ("ETag", '"v1"'), *more):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def flip_bytes(chance: random.Random, part: Path) -> None:
    path = chance.choice((part, part.with_suffix(".json")))
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 8)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def cut(chance: random.Random, part: Path) -> None:
    path = chance.choice((part, part.with_suffix(".json")))
    os.truncate(path, chance.choice((0, 1, path.stat().st_size // 2, path.stat().st_size + 4096, 1 << 40)))


def restate(chance: random.Random, part: Path) -> None:
    """Fields of the sidecar's tree, under a checksum that fits."""
    fields = ["job_id", "fence", "inode", "final_url_sha256", "etag", "last_modified", "date", "total", "complete"]
    names = chance.sample([*fields, "checkpoints", "pieces", "promised", "unproven", "v", "imprint", "more"], 3)
    forged.restate(part, **{name: chance.choice(ODD) for name in names[: chance.randint(1, 3)]})


def restate_marks(chance: random.Random, part: Path) -> None:
    data = part.read_bytes()
    ends = sorted({chance.choice((0, 1, len(data), chance.randint(0, len(data) + 9), 2**62)) for _ in range(4)})
    right = chance.random() < 0.7 and any(body.startswith(data) for body in BODIES.values())
    marks = [[end, hashlib.sha256(data[:end] if right else b"").hexdigest()] for end in ends]
    forged.restate(part, checkpoints=marks, total=chance.choice((ends[-1], len(data), len(data) + 1, None)))


def claim_fence(chance: random.Random, part: Path) -> None:
    forged.restate(part, fence=chance.choice((-1, 0, 3, 1_000, 2**63 - 1, 2**70)), job_id="@job")


def nest(chance: random.Random, part: Path) -> None:
    depth = chance.choice((50, 5_000, 200_000))
    text = chance.choice(("[" * depth, '{"a":' * depth, "[" * depth + "]" * depth))
    wrapped = json.dumps({"body": text, "sha256": sha256(text.encode())})
    part.with_suffix(".json").write_text(chance.choice((text, wrapped)))


def junk(chance: random.Random, part: Path) -> None:
    part.with_suffix(".json").write_bytes(chance.randbytes(chance.choice((0, 1, 100, 70_000))))


def huge(chance: random.Random, part: Path) -> None:
    part.with_suffix(".json").write_bytes(b"[" + b"[]," * chance.choice((1_000_000, 2_000_000)))


def another_kind(chance: random.Random, part: Path) -> None:
    chance.choice(forged.KINDS)(part.with_suffix(chance.choice((".part", ".json"))))


def another_folder(chance: random.Random, part: Path) -> None:
    """Something where a folder of a tenant without jobs belongs."""
    chance.choice(forged.KINDS)(part.parent.parent / chance.choice(("0", "b", "zz")))


def odd_name(chance: random.Random, part: Path) -> None:
    name = bytes(chance.choice([*range(1, 47), *range(48, 256)]) for _ in range(chance.randint(1, 60)))
    name += chance.choice((b"", b".part", b".json", b".01234567.tmp"))
    if name not in (b".", b".."):
        folder = os.fsencode(chance.choice((part.parent, part.parent.parent)))
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(b"x")


def forbid(chance: random.Random, part: Path) -> None:
    chance.choice((part, part.with_suffix(".json"))).chmod(chance.choice((0, 0o444, 0o222)))


def link(chance: random.Random, part: Path) -> None:
    os.link(part, part.with_name(f"{chance.randrange(10**6)}.other"))


def forge_end(chance: random.Random, part: Path) -> None:
    """The whole file again, right only at its end, or only at its beginning."""
    imprint = part.stat().st_size
    forged.imprint_again(part, sha256(chance.randbytes(imprint % 64)))


DAMAGES: tuple[Damage, ...] = (
    flip_bytes, cut, restate, restate, restate_marks, claim_fence, nest, junk, huge, another_kind, another_kind,
    another_folder, odd_name, forbid, link, forge_end,
)  # fmt: skip


NOTHING_LEFT = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError)
"""What damage meets where earlier damage left nothing to do it to."""


# ── a case ────────────────────────────────────────────────────────────────────────────────────────


class Fault(Exception):
    """What may not be, was."""


def is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 32 << 20


def lay(chance: random.Random, root: Path, url: str, body: bytes, tenant: str, job: str) -> Path:
    """A part as an earlier run could have left it, or one that was never brought; and some damage."""
    whole = chance.random() < 0.5
    held = body if whole else body[: chance.randint(1, len(body))]
    if chance.random() < 0.4:
        # Only of what is compared: a beginning that was forged under an end that is right passes, as faults.md says.
        held = chance.choice((altered(held[::-1])[::-1], chance.randbytes(len(held))))
        if not whole:
            held = body[: len(held)]
    part = forged.forge(root, url, held, tenant=tenant, total=None if whole else len(body))
    for _ in range(chance.randint(0, 3)):
        if not (is_plain(part) and is_plain(part.with_suffix(".json"))):
            break
        with suppress(*NOTHING_LEFT):
            chance.choice(DAMAGES)(chance, part)
    beside = part.with_suffix(".json")
    with suppress(*NOTHING_LEFT):
        if is_plain(part) and is_plain(beside) and b"@job" in beside.read_bytes():
            forged.restate(part, job_id=job)
    return part


def play(world: Pipeline, server: str, chance: random.Random, number: int) -> str:
    """One case; answers what the job came to."""
    path, body = chance.choice(list(BODIES.items()))
    url, tenant = f"{server}{path}?{number}", chance.choice(TENANTS)
    job = world.plan(url, tenant_id=tenant)
    for other in TENANTS:
        lay(chance, world.root, url if other == tenant else f"{url}&left", body, other, job)
    world.drive()
    for _ in range(3):
        if world.row(job).due_at is None:
            break
        world.make_due(job)
        world.drive()
    state, error, attempts = world.state(job), world.error(job), world.row(job).attempts
    if state not in (State.DEDUPED, State.SKIPPED_DUPLICATE) or attempts:
        raise Fault(f"the job came to {state} ({error}) with {attempts} attempts")
    published = [name for name, data in blobs(world.root).items() if data not in BODIES.values()]
    if published:
        raise Fault(f"wrong bytes were published: {published}")
    swept(world, url)
    return str(state)


def swept(world: Pipeline, url: str) -> None:
    """What no job wants is gone after some rounds, of every tenant; what is no file of ours may stay."""
    for _ in range(3):
        report = reconcile(world.deps)
        if not world.sql("SELECT 1 FROM cursors WHERE name = 'reconcile.staging' AND position <> ''"):
            break
    else:
        raise Fault("the walk does not come to its end")
    for tenant in TENANTS:
        part = forged.path_of(world.root, f"{url}&left", tenant)
        plain = part.is_file() and not part.is_symlink()
        beside = part.with_suffix(".json")
        odd = os.path.lexists(beside) and (beside.is_symlink() or not beside.is_file())
        known = any(one.kind == "parts_unknown" for one in report.findings)
        if plain and not odd and not known:
            raise Fault(f"an old part of {tenant} is still there")


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise Fault(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(cases: int, seed: int, folder: Path) -> Counter[str]:
    """Play so many cases; Fault names the first one that went wrong."""
    counts: Counter[str] = Counter()
    with served() as server:
        for first in range(0, cases, 50):  # each crowd in a world of its own, so that no listing grows without bound
            at = folder / str(first)
            at.mkdir()
            url = f"sqlite:///{at / 'ledger.db'}"
            database = SqlDatabase(url)
            migrate(database)
            world = Pipeline(database, at / "store")
            staging = LocalStaging(world.root, clock=lambda: time.time() + 86_400)
            world.deps = replace(world.deps, staging=staging)
            try:
                for number in range(first, min(cases, first + 50)):
                    chance = random.Random(f"{seed}.{number}")
                    try:
                        with within(CASE_S):
                            counts[play(world, server, chance, number)] += 1
                    except Exception as error:
                        raise Fault(f"case {number} of seed {seed}: {type(error).__name__}: {error}") from error
            finally:
                world.close()
                database.close()
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(prog="tests.fuzz.staging", description="Damage staging folders, and look on.")
    words.add_argument("--cases", type=int, default=1_000)
    words.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = words.parse_args(argv)
    logging.disable(logging.CRITICAL)  # each thing that is passed over would be told
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dlfuzz") as folder:
        try:
            counts = run(given.cases, given.seed, Path(folder))
        except Fault as fault:
            print(f"staging: FAILED, {fault}")
            return 1
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"staging: {sum(counts.values())} cases of seed {given.seed} in {time.monotonic() - began:.0f} s: {told};")
    print("  0 wrong bytes, 0 attempts lost, 0 errors of ours, 0 walks that did not come to their end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
