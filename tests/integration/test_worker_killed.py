"""Workers that are stopped or killed in the middle of a stream: another one ends the job. LEASE-3, HEAL-2, RESUME-2."""

from __future__ import annotations

import os
import signal

import pytest

from dlpipe.store.sidecar import Sidecar
from tests.fleet import Fleet
from tests.webserver import WebServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MIB = 1 << 20
PATH = "/big.bin"
SIZE = 6 * MIB
OVERLAP = 65_536
"""What is held is compared with the server's over its last bytes before it is gone on with."""
HALF = 3 * MIB + 1000


@pytest.mark.everywhere
def test_a_worker_stopped_beyond_its_lease_changes_nothing_when_it_wakes_up(fleet: Fleet, web: WebServer) -> None:
    url = web.put(PATH, body := os.urandom(SIZE), hold_at=HALF)
    late = fleet.worker("late")
    fleet.plan([url])
    fleet.until(lambda: vouched(fleet) >= 3 * MIB, "the stream to be half-way", late)
    fleet.freeze(late)
    before = fleet.job(url)
    fleet.worker("next")
    fleet.beat()
    fleet.until(lambda: fleet.job(url).fence > before.fence, "somebody else to take the job")
    web.release(PATH)
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
    ledger, files = fleet.ledger(), versions(fleet)
    late.send(signal.SIGCONT)
    fleet.until(lambda: late.says("given up"), "the late worker to notice", late)
    fleet.until(lambda: late.says("dropped: lease_lost"), "the late worker to let go", late)
    assert fleet.ledger() == ledger
    assert versions(fleet) == files
    assert fleet.staged() == []
    fleet.assert_each_once({url: body})
    # And it is of use again.
    other = web.put("/other.bin", more := os.urandom(1000))
    fleet.plan([other])
    fleet.until(lambda: fleet.done() == 2, "the next job to end", late)
    fleet.assert_each_once({url: body, other: more})


@pytest.mark.everywhere
def test_a_stream_cut_off_by_kill_9_goes_on_from_the_bytes_that_are_there(fleet: Fleet, web: WebServer) -> None:
    url = web.put(PATH, body := os.urandom(SIZE), hold_at=HALF)
    first = fleet.worker("first")
    fleet.plan([url])
    fleet.until(lambda: vouched(fleet) >= 3 * MIB, "the stream to be half-way", first)
    fleet.until(lambda: web.sent(PATH) == HALF, "the gate to be reached", first)
    held = vouched(fleet)
    first.kill()
    web.release(PATH)
    fleet.worker("second")
    fleet.beat()
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
    cut, rest = web.gets(PATH)
    assert (cut.range, rest.range, rest.status) == (None, f"bytes={held - OVERLAP}-", 206)
    assert rest.sent == SIZE - held + OVERLAP
    (row,) = fleet.sql("SELECT resumed_from_bytes, bytes_written, resume_decision FROM manifest")
    assert tuple(row) == (held, SIZE - held, "resume")
    # A broker that saw the connection break gives the message again: whichever comes first goes on, it or a new run.
    job = fleet.job(url)
    assert (job.run, job.attempts) in {(2, 1), (1, 0)}


def test_workers_killed_one_after_the_other_never_lose_what_came(fleet: Fleet, web: WebServer) -> None:
    url = web.put(PATH, body := os.urandom(SIZE), bytes_per_s=2 * MIB)
    fleet.beat()
    held = []
    for turn in range(3):
        worker = fleet.worker(f"w{turn}")
        if turn == 0:
            fleet.plan([url])
        fleet.until(lambda t=turn: vouched(fleet) >= (t + 1) * MIB, "one more MiB", worker)
        worker.kill()
        held.append(vouched(fleet))
    fleet.worker("last")
    fleet.until(fleet.done, "the job to end")
    fleet.assert_each_once({url: body})
    starts = [int(get.range[6:-1]) if get.range else 0 for get in web.gets(PATH)]
    # On a busy machine one of them may have had it all before it was killed; then nobody asks any more.
    assert 1 < len(starts) <= 4
    assert all(start >= kept - OVERLAP for start, kept in zip(starts[1:], held, strict=False)), (starts, held)


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def vouched(fleet: Fleet) -> int:
    """How many bytes the sidecar of the one part vouches for."""
    for side in (fleet.home / "store" / ".staging").rglob("*.json"):
        try:
            found = Sidecar.load(side.read_bytes())
        except FileNotFoundError:
            continue
        return found.checkpoints[-1].offset if found and found.checkpoints else 0
    return 0


def versions(fleet: Fleet) -> tuple[dict[str, object], dict[str, bytes]]:
    return fleet.shelf.versions(fleet.home / "store"), fleet.blobs()
