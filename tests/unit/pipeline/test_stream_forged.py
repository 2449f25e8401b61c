"""Parts and sidecars that fit each other and were never brought by dlpipe: no file is published on their word alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import LeaseLost, Retryable
from dlpipe.core.states import State
from dlpipe.pipeline.runner import Done, Failed
from dlpipe.pipeline.stages.stage import part_of
from tests import forged
from tests.world import World, altered, job_of, sha256, some_bytes

URL = "http://files.example/a.bin"
LARGE, SMALL = some_bytes(300_000), some_bytes(5_000)


def ended(world: World, job: str, body: bytes, attempts: int = 0) -> None:
    assert (world.state(job), world.row(job).attempts) == (State.DEDUPED, attempts)
    assert [sha256(data) for data in world.blobs().values()] == [sha256(body)]
    assert [name for name in world.staged() if name.endswith((".part", ".json"))] == []


@pytest.mark.parametrize("head", [True, False], ids=["HEAD", "no HEAD"])
@pytest.mark.parametrize("body", [LARGE, SMALL], ids=["large", "small"])
def test_a_whole_forged_part_is_not_published(world: World, body: bytes, head: bool) -> None:
    world.source.put(URL, body, head=head)
    forged.forge(world.root, URL, bytes(reversed(body)))
    ended(world, world.fetch(URL), body)


def test_a_small_forged_part_that_ends_right_is_not_published(world: World) -> None:
    world.source.put(URL, SMALL)
    forged.forge(world.root, URL, altered(SMALL))
    ended(world, world.fetch(URL), SMALL)


def test_a_whole_part_that_an_earlier_process_left_costs_its_last_bytes(world: World) -> None:
    world.source.put(URL, LARGE)
    forged.forge(world.root, URL, LARGE)
    ended(world, world.fetch(URL), LARGE)
    (asked,) = world.source.gets(URL)
    assert 0 < len(LARGE) - asked.start <= 64 << 10


def test_a_whole_part_without_a_validator_comes_again(world: World) -> None:
    world.source.put(URL, LARGE, head=False, etag=None)
    part = forged.forge(world.root, URL, LARGE)
    forged.restate(part, etag=None)
    ended(world, world.fetch(URL), LARGE)
    assert [one.start for one in world.source.gets(URL)] == [0]


def test_a_whole_part_whose_bytes_the_ledger_knows_costs_no_request(world: World) -> None:
    """The stream stage of the run before is on record; what came after it failed."""
    job = streamed_and_not_published(world)
    world.source.asked.clear()
    again(world, job)
    ended(world, job, LARGE, attempts=1)
    assert world.source.gets(URL) == []


def test_a_whole_part_with_another_hash_than_the_ledger_knows_is_not_published(world: World) -> None:
    job = streamed_and_not_published(world)
    forged.forge(world.root, URL, bytes(reversed(LARGE)))
    again(world, job)
    ended(world, job, LARGE, attempts=1)


def test_a_whole_part_that_fits_the_wanted_digest_costs_no_request(world: World) -> None:
    world.source.put(URL, LARGE)
    forged.forge(world.root, URL, LARGE)
    ended(world, world.fetch(URL, sha256=sha256(LARGE)), LARGE)
    assert world.source.gets(URL) == []


def test_a_sealed_whole_part_is_compared_and_published(world: World) -> None:
    """Its publisher died between name and record, and its own job is not the one that comes next."""
    world.source.put(URL, LARGE)
    forged.forge(world.root, URL, LARGE).chmod(0o444)
    ended(world, world.fetch(URL), LARGE)
    assert len(world.source.gets(URL)) == 1


def test_bytes_forged_between_stream_and_finalize_are_not_published(world: World) -> None:
    """With a sidecar that says of the new bytes all that it said of the old ones."""
    body = some_bytes(9 << 20)
    world.source.put(URL, body)
    job = world.plan(URL)
    assert isinstance(world.try_stream(job), Done)
    part = forged.path_of(world.root, URL)
    with part.open("r+b") as file:
        file.write(altered(body)[:1])
    forged.imprint_again(part, sha256(body))
    assert isinstance(outcome := world.run("finalize", job), Failed)
    assert (outcome.code, world.blobs()) == ("part_damaged", {})


# ── what stands in the place of a part or a sidecar ───────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".part", ".json"])
@pytest.mark.parametrize("kind", forged.KINDS)
@pytest.mark.timeout(30)
def test_what_is_no_file_makes_way_at_no_cost(world: World, kind: Callable[[Path], None], suffix: str) -> None:
    world.source.put(URL, SMALL)
    part = forged.forge(world.root, URL, SMALL)
    kind(part.with_suffix(suffix))
    ended(world, world.fetch(URL), SMALL)


@pytest.mark.parametrize("stage", ["resume_decide", "stream", "finalize"])
@pytest.mark.parametrize("suffix", [".part", ".json"])
def test_what_is_put_there_between_two_stages_is_no_internal_error(world: World, stage: str, suffix: str) -> None:
    world.source.put(URL, SMALL)
    job = world.plan(URL)
    world.run_to(stage, job)
    path = forged.path_of(world.root, URL).with_suffix(suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    forged.full_folder(path)
    outcome = world.run(stage, job)
    assert not isinstance(outcome, Failed) or outcome.code == "part_damaged"
    if isinstance(outcome, Failed):
        again(world, job)
    else:
        for name in ("resume_decide", "stream", "finalize", "index", "dedupe"):
            world.run(name, job)
    assert world.state(job) is State.DEDUPED


@pytest.mark.parametrize("kind", forged.KINDS)
@pytest.mark.timeout(30)
def test_what_stands_in_the_place_of_a_tenants_folder_costs_no_attempt(
    world: World, kind: Callable[[Path], None]
) -> None:
    world.source.put(URL, SMALL)
    (world.root / ".staging").mkdir(parents=True)
    kind(blocked := world.root / ".staging" / "default")
    job = world.fetch(URL)
    if blocked.is_symlink() or not blocked.is_dir():
        assert (world.row(job).attempts, world.view(job).error_code) == (0, "staging_blocked")
        forged.clear(blocked)
        world.make_due(job)
        world.drive()
    assert world.state(job) is State.DEDUPED


# ── a fence that the ledger never gave ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fence", [-1, 0, 7, 10_000, 2**63 - 1, 2**70])
def test_a_forged_fence_keeps_no_job_from_its_part(world: World, fence: int) -> None:
    world.source.put(URL, LARGE)
    job = world.plan(URL)
    part = forged.forge(world.root, URL, LARGE[:100_000], total=len(LARGE))
    forged.restate(part, fence=fence, job_id=job)
    world.drive()
    ended(world, job, LARGE)
    assert world.row(job).run == 1


def test_a_forged_fence_on_a_part_that_is_held_by_a_stopped_holder_keeps_no_job_from_it(world: World) -> None:
    world.source.put(URL, SMALL)
    job = world.plan(URL)
    with world.deps.staging.claim("default", URL, job, 0) as stopped:
        assert stopped.facts is None
        forged.restate(forged.path_of(world.root, URL), fence=2**62)
        world.drive()
    ended(world, job, SMALL)


def test_a_late_holder_still_leaves_the_part_to_the_one_the_ledger_knows(world: World) -> None:
    world.source.put(URL, SMALL)
    job = world.plan(URL)
    world.run_to("stream", job)
    late = job_of(world, job)
    assert isinstance(world.run("stream", job), Done)
    with pytest.raises(LeaseLost), world.deps.staging.claim(*part_of(world.deps, late)):
        pass


def again(world: World, job: str) -> None:
    """The next run, which is due some time."""
    world.make_due(job)
    world.drive()


def streamed_and_not_published(world: World) -> str:
    """The stream stage is on record, and finalize has failed."""
    world.source.put(URL, LARGE)
    job = world.plan(URL)
    world.run_to("finalize", job)

    def fail(point: str) -> None:
        if point == "finalize.before_link":
            raise Retryable("the disk is slow", code="store_io_error")

    crash.arm(fail)
    try:
        assert isinstance(world.run("finalize", job), Failed)
    finally:
        crash.arm(None)
    return job
