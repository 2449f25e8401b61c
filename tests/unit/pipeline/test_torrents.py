"""Downloads that follow a torrent, against a client in memory: start, hand over, follow, cancel (TORRENT-1…6)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.downloads import Removal
from dlpipe.core.errors import InvalidInput, LeaseUnavailable, Retryable, TorrentOutage, TorrentRefused
from dlpipe.core.model import Scope
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.torrents import DownloadStatus
from dlpipe.pipeline import torrents
from tests.torrent_world import TorrentWorld, info_hash, magnet
from tests.torrents_made import make
from tests.world import DEFAULT


def outage() -> TorrentOutage:
    return TorrentOutage("it does not answer")


# ── start ─────────────────────────────────────────────────────────────────────────────────────────


def test_start_is_on_record_before_anybody_is_told(torrent: TorrentWorld) -> None:
    torrent.messages.error = LeaseUnavailable("no broker")
    answer = torrent.start()
    assert (answer.outcome, torrent.state(answer.job_id)) == ("created", "queued")
    assert torrent.client.requests == []


def test_start_again_answers_the_active_job_and_tells_nobody(torrent: TorrentWorld) -> None:
    first = torrent.start()
    again = torrent.start(source=magnet(7))
    assert (again.job_id, again.outcome, again.state) == (first.job_id, "known", DownloadStatus.QUEUED)
    assert torrent.messages.sent == [("enqueue", first.job_id)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"source": "ftp://x.example/a.torrent"}, "url_scheme"),
        ({"source": "https://user:secret@x.example/a.torrent"}, "url_userinfo"),
        ({"source": "magnet:?dn=nothing"}, "magnet_malformed"),
        ({"source": b"<html>login</html>"}, "torrent_malformed"),
        ({"source": ""}, "source_invalid"),
        ({"user_id": ""}, "user_id_invalid"),
        ({"user_id": "u" * 129}, "user_id_invalid"),
        ({"book_id": "b\n"}, "book_id_invalid"),
        ({"media_type": "m" * 65}, "media_type_invalid"),
        ({"tenant_id": "../x"}, "tenant_invalid"),
        ({"color": "red"}, "fields_invalid"),
    ],
)
def test_start_refuses_what_cannot_be_and_writes_nothing(
    torrent: TorrentWorld, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        torrent.start(**fields)
    assert refused.value.code == code
    assert torrent.sql("SELECT count(*) FROM jobs") == [(0,)]


def test_start_refuses_a_host_that_the_egress_policy_forbids(torrent: TorrentWorld) -> None:
    from dataclasses import replace

    base = replace(torrent.deps.base, forbidden=lambda host, port: f"{host} is private")
    torrent.deps = replace(torrent.deps, base=base)
    with pytest.raises(InvalidInput) as refused:
        torrent.start(source="http://127.0.0.1/a.torrent")
    assert refused.value.code == "egress_forbidden"


# ── handing over ──────────────────────────────────────────────────────────────────────────────────


def test_magnet_file_and_url_are_handed_over_by_their_info_hash(torrent: TorrentWorld, tmp_path: Path) -> None:
    made = make(tmp_path, "a.epub", b"x" * 1000)
    other = make(tmp_path, "b.epub", b"y" * 1000)
    torrent.client.pages["https://x.example/b.torrent"] = other.file
    ids = [
        torrent.start(1).job_id,
        torrent.start(2, source=made.file).job_id,
        torrent.start(3, source="https://x.example/b.torrent").job_id,
    ]
    assert [said.partition(":")[0] for said in torrent.drive()] == ["enqueued"] * 3
    assert [torrent.row(job).external_job_id for job in ids] == [info_hash(1), made.info_hash, other.info_hash]
    assert all(held.tags == {"dlpipe"} for held in torrent.client.held.values())
    assert torrent.client.held[info_hash(1)].torrent.save_path == str(torrent.saved)


def test_handing_over_twice_is_harmless(torrent: TorrentWorld) -> None:
    job_id = torrent.start().job_id
    found = torrent.deps.base.database
    with found.read() as unit:
        stale = unit.torrents.work(job_id)
    assert torrents.enqueue(torrent.deps, job_id) == f"enqueued: {info_hash()}"
    before = torrent.row(job_id)
    assert torrents.enqueue(torrent.deps, job_id) == "dropped: nothing to enqueue"
    assert stale is not None
    with found.write() as unit:  # a second worker that read the row before the first one wrote
        assert not unit.torrents.enqueued(stale.job, info_hash(), torrent.now)
    assert torrent.row(job_id) == before
    assert len(torrent.client.held) == 1


def test_a_message_that_was_lost_is_sent_again_but_not_too_soon(torrent: TorrentWorld) -> None:
    job_id = torrent.start().job_id
    with torrent.database.read() as unit:
        now = unit.torrents.clock()
    assert torrents.send_due(torrent.deps, now) == 0
    assert torrents.send_due(torrent.deps, now + timedelta(seconds=61)) == 1
    assert torrents.send_due(torrent.deps, now + timedelta(seconds=62)) == 0
    assert torrent.messages.sent == [("enqueue", job_id)] * 2


def test_what_no_message_went_out_for_is_due_at_once(torrent: TorrentWorld) -> None:
    torrent.messages.error = LeaseUnavailable("no broker")
    job_id = torrent.start().job_id
    assert torrents.send_due(torrent.deps) == 1, "there is still no broker"
    torrent.messages.error = None
    assert torrents.send_due(torrent.deps) == 1
    assert torrents.send_due(torrent.deps) == 0
    assert torrent.messages.sent == [("enqueue", job_id)]


@pytest.mark.parametrize("error", [outage(), Retryable("503", code="http_5xx")])
def test_handing_over_fails_for_good_only_after_its_retries(torrent: TorrentWorld, error: Exception) -> None:
    torrent.policy(retry=RetryPolicy(max_attempts=3, base_s=5, cap_s=600))
    job_id = torrent.start().job_id

    def add(*_: Any, **__: Any) -> str:
        raise error

    torrent.client.add = add  # type: ignore[method-assign]
    code = getattr(error, "code", "")
    due = []
    for _ in range(2):
        assert torrents.enqueue(torrent.deps, job_id) == f"postponed: {code}"
        due.append(torrent.row(job_id).due_at_utc)
        assert (torrent.state(job_id), torrent.job(job_id).error_code) == ("queued", code)
    assert due[1] > due[0]
    assert torrents.enqueue(torrent.deps, job_id) == "failed: enqueue_failed"
    row, job = torrent.row(job_id), torrent.job(job_id)
    assert (row.status, row.failure_reason, row.due_at_utc) == ("failed", "enqueue_failed", None)
    assert (job.status, job.error_code, job.error_debug_id) == ("failed", "enqueue_failed", "debug")
    assert code in job.error_message_safe
    assert torrents.enqueue(torrent.deps, job_id) == "dropped: nothing to enqueue"


def test_a_torrent_that_is_refused_fails_at_once_with_the_reason(torrent: TorrentWorld) -> None:
    torrent.client.refusal = TorrentRefused("it cannot be read", code="torrent_malformed")
    job_id = torrent.start().job_id
    assert torrent.drive() == ["failed: torrent_malformed"]
    assert (torrent.state(job_id), torrent.row(job_id).failure_reason) == ("failed", "torrent_malformed")


def test_canceled_while_it_was_handed_over_is_removed_again(torrent: TorrentWorld) -> None:
    job_id = torrent.start().job_id
    add = torrent.client.add

    def slow(*args: Any, **more: Any) -> str:
        torrents.cancel(torrent.deps, DEFAULT, job_id)
        return add(*args, **more)

    torrent.client.add = slow  # type: ignore[method-assign]
    assert torrents.enqueue(torrent.deps, job_id) == "dropped: the job moved on meanwhile"
    assert (torrent.state(job_id), torrent.client.held) == ("canceled", {})


# ── following ─────────────────────────────────────────────────────────────────────────────────────


def test_a_torrent_goes_from_queued_over_downloading_to_completed(torrent: TorrentWorld) -> None:
    job_id = torrent.added()
    torrent.client.say(info_hash(), "stalledDL")
    assert torrent.sync().begun == 1
    assert torrent.state(job_id) == "downloading"
    torrent.finish()
    assert torrent.sync(15).complete == 1
    assert torrent.state(job_id) == "downloading"  # completed is recorded with all that it brings
    assert torrent.drive() == ["completed: 1 files"]
    assert torrent.state(job_id) == "completed"


def test_complete_at_the_first_look_is_two_recorded_steps(torrent: TorrentWorld) -> None:
    job_id = torrent.added()
    version = torrent.row(job_id).row_version
    torrent.finish()
    report = torrent.sync()
    assert (report.begun, report.complete) == (1, 1)
    assert (torrent.state(job_id), torrent.row(job_id).row_version) == ("downloading", version + 1)
    torrent.drive()
    assert (torrent.state(job_id), torrent.row(job_id).row_version) == ("completed", version + 2)


def test_the_row_shows_how_far_it_is_but_a_hundred_only_when_it_is_done(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.finish()
    held = torrent.client.held[info_hash()]
    size = held.torrent.size
    torrent.client.say(info_hash(), "downloading", size // 2)
    torrent.sync(15)
    assert (torrent.job(job_id).progress, torrent.row(job_id).done_bytes) == (50, size // 2)
    torrent.client.say(info_hash(), "stalledUP", size)
    torrent.sync(15)
    assert torrent.job(job_id).progress == 99
    torrent.drive()
    assert torrent.job(job_id).progress == 100


@pytest.mark.parametrize(("passed_s", "state"), [(44.999, "downloading"), (45.0, "failed")])
def test_the_grace_ends_to_the_second(torrent: TorrentWorld, passed_s: float, state: str) -> None:
    from dlpipe.core.torrents import TorrentPolicy

    torrent.policy(watch=TorrentPolicy(grace_s=45.0))  # no longer than the gap between two looks may be
    job_id = torrent.downloading()
    torrent.client.remove(info_hash())
    assert torrent.sync(15).missing == 1
    torrent.sync(passed_s)
    assert torrent.state(job_id) == state


def test_removed_from_outside_fails_after_the_grace(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.client.remove(info_hash())
    for _ in range(4):
        torrent.sync(15)
        assert torrent.state(job_id) == "downloading"
    assert torrent.sync(15).failed == 1
    row, job = torrent.row(job_id), torrent.job(job_id)
    assert (row.status, row.failure_reason) == ("failed", "missing_external_job")
    assert (job.status, job.error_code) == ("failed", "missing_external_job")


def test_back_within_the_grace_goes_on_and_the_next_absence_starts_anew(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    held = torrent.client.remove(info_hash())
    for _ in range(4):
        torrent.sync(15)
    torrent.client.put_back(held)
    assert torrent.sync(10).found_again == 1
    assert torrent.row(job_id).first_not_found_at_utc is None
    torrent.client.remove(info_hash())
    for _ in range(4):
        torrent.sync(15)
    assert torrent.state(job_id) == "downloading"
    torrent.sync(15)
    assert torrent.state(job_id) == "failed"


def test_not_listed_right_after_it_was_added_is_waited_out(torrent: TorrentWorld) -> None:
    torrent.client.unlisted_looks = 3
    job_id = torrent.added()
    for _ in range(3):
        assert torrent.sync(15).failed == 0
    torrent.client.say(info_hash(), "downloading")
    torrent.sync(15)
    assert torrent.state(job_id) == "downloading"


def test_an_outage_changes_nothing_and_the_grace_does_not_run_in_it(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.client.remove(info_hash())
    torrent.sync(15)
    before = torrent.row(job_id), torrent.job(job_id)
    torrent.client.outage = outage()
    for _ in range(400):
        assert torrent.sync(15).outage == "torrent_outage"
    assert (torrent.row(job_id), torrent.job(job_id)) == before
    torrent.client.outage = None
    report = torrent.sync(15)
    assert (report.clocks_cleared, report.failed, report.missing) == (True, 0, 1)
    for _ in range(3):
        torrent.sync(15)
    assert torrent.state(job_id) == "downloading"
    torrent.sync(15)
    assert torrent.row(job_id).failure_reason == "missing_external_job"


def test_a_time_in_which_nobody_looked_counts_as_an_outage(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.client.remove(info_hash())
    torrent.sync(15)
    torrent.sync(3600)  # the scheduler was off, and perhaps the machine
    assert torrent.state(job_id) == "downloading"


@pytest.mark.parametrize(("said", "reason"), [("error", "torrent_error"), ("missingFiles", "missing_files")])
def test_error_states_fail_with_the_reason(torrent: TorrentWorld, said: str, reason: str) -> None:
    job_id = torrent.downloading()
    torrent.client.say(info_hash(), said)
    torrent.sync(15)
    assert (torrent.state(job_id), torrent.row(job_id).failure_reason) == ("failed", reason)
    assert torrent.job(job_id).error_code == reason


def test_an_unknown_state_changes_nothing_and_is_reported_safely(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    before = torrent.row(job_id)
    torrent.client.say(info_hash(), "hovering\x1b[2J\ud800")
    report = torrent.sync(15)
    assert report.unknown_states == {"hovering\\x1b[2J\\ud800": 1}
    after = torrent.row(job_id)
    assert (after.status, after.row_version) == (before.status, before.row_version)


def test_a_stall_is_seen_by_bytes_and_not_by_the_name_of_the_state(torrent: TorrentWorld) -> None:
    torrent.downloading()
    torrent.finish()
    for done in range(80):  # "stalled" all the time, but bytes come
        torrent.client.say(info_hash(), "stalledDL", done)
        assert torrent.sync(15).stalled == 0
    stalled = [torrent.sync(15).stalled for _ in range(41)]
    assert stalled == [0] * 39 + [1, 1]


def test_a_completed_download_is_not_followed_any_more(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.finish()
    torrent.sync(15)
    torrent.drive()
    before = torrent.row(job_id), torrent.job(job_id)
    torrent.client.requests.clear()
    for state in ("checkingUP", "missingFiles", "error", "downloading"):
        torrent.client.say(info_hash(), state)
        torrent.sync(15)
    torrent.client.remove(info_hash())
    torrent.sync(3600)
    assert (torrent.row(job_id), torrent.job(job_id)) == before
    assert torrent.client.requests == []


@pytest.mark.slow
def test_a_thousand_are_each_looked_at_in_ten_rounds_of_one_request(torrent: TorrentWorld) -> None:
    with torrent.database.write() as unit:
        for number in range(1000):
            fields = {"user_id": "u", "book_id": f"b{number}", "media_type": "ebook", "source": magnet(number)}
            spec = torrents.checked(torrent.deps, fields)
            answer = unit.torrents.start(spec, torrent.deps.new_id(), torrent.now, torrent.now)
            found = unit.torrents.work(answer.job_id)
            assert found is not None
            unit.torrents.enqueued(found.job, info_hash(number), torrent.now)
    for number in range(1000):
        torrent.client.add(magnet(number), save_path="/x", tag="t")
        torrent.client.say(info_hash(number), "stalledDL")
    for cycle in range(2):  # the first moves all of them, the second none
        torrent.client.requests.clear()
        for _ in range(10):
            assert torrent.sync(15).checked == 100
        asked = [set(request[1:]) for request in torrent.client.requests]
        assert [request[0] for request in torrent.client.requests] == ["torrents"] * 10
        assert set.union(*asked) == {info_hash(number) for number in range(1000)}
        begun = torrent.sql("SELECT count(*) FROM download_jobs WHERE status = 'downloading'")
        assert begun == [(1000,)], f"cycle {cycle}"


def test_two_rounds_at_once_write_each_change_once(torrent: TorrentWorld) -> None:
    """The second round answers while the first one's question is under way."""
    ids = [torrent.added(number) for number in range(5)]
    versions = [torrent.row(job).row_version for job in ids]
    for number in range(5):
        torrent.client.say(info_hash(number), "downloading")
    ask, inner = torrent.client.torrents, []

    def slow(hashes: Any) -> Any:
        torrent.client.torrents = ask  # type: ignore[method-assign]
        found = ask(hashes)
        inner.append(torrent.sync(1))
        return found

    torrent.client.torrents = slow  # type: ignore[method-assign]
    outer = torrent.sync(15)
    assert (inner[0].begun, inner[0].overtaken) == (5, 0)
    assert (outer.begun, outer.overtaken) == (0, 5)
    assert [torrent.row(job).row_version for job in ids] == [version + 1 for version in versions]
    assert {torrent.state(job) for job in ids} == {"downloading"}


# ── cancel ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("removal", "held", "file"), [("keep", True, True), ("remove", False, True), ("remove_with_files", False, False)]
)
def test_cancel_removes_the_torrent_by_policy(torrent: TorrentWorld, removal: str, held: bool, file: bool) -> None:
    job_id = torrent.downloading()
    torrent.finish(state="downloading")
    torrent.policy(removal=Removal(removal))
    assert torrents.cancel(torrent.deps, DEFAULT, job_id) is DownloadStatus.CANCELED
    assert (torrent.state(job_id), torrent.job(job_id).status) == ("canceled", "canceled")
    assert (info_hash() in torrent.client.held) is held
    assert (torrent.saved / "book1.epub").exists() is file


def test_a_wish_overrides_the_policy(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrents.cancel(torrent.deps, DEFAULT, job_id, Removal.KEEP)
    assert info_hash() in torrent.client.held


def test_canceled_in_an_outage_is_removed_when_the_client_is_back(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.client.outage = outage()
    assert torrents.cancel(torrent.deps, DEFAULT, job_id) is DownloadStatus.CANCELED
    assert torrent.sync(15).outage
    torrent.client.outage = None
    assert torrent.sync(15).removed == 1
    assert torrent.client.held == {}
    assert torrent.sync(15).removed == 0


def test_a_torrent_that_another_job_follows_stays(torrent: TorrentWorld) -> None:
    mine, other = torrent.downloading(), torrent.downloading(user_id="v")
    torrents.cancel(torrent.deps, DEFAULT, mine, Removal.REMOVE_WITH_FILES)
    assert info_hash() in torrent.client.held
    torrents.cancel(torrent.deps, DEFAULT, other, Removal.REMOVE)
    assert torrent.client.held == {}


def test_cancel_answers_nothing_for_a_foreign_id_and_nothing_happens_at_the_end(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    assert torrents.cancel(torrent.deps, Scope("other", "default"), job_id) is None
    torrent.finish()
    torrent.sync(15)
    torrent.drive()
    before = torrent.row(job_id)
    assert torrents.cancel(torrent.deps, DEFAULT, job_id) is DownloadStatus.COMPLETED
    assert torrent.row(job_id) == before
    assert info_hash() in torrent.client.held


def test_canceled_while_its_files_are_read_is_not_completed(torrent: TorrentWorld) -> None:
    job_id = torrent.downloading()
    torrent.finish()
    torrent.sync(15)
    torrents.cancel(torrent.deps, DEFAULT, job_id, Removal.KEEP)
    assert torrent.drive() == ["dropped: nothing to register"]
    assert torrent.state(job_id) == "canceled"
    assert torrent.sql("SELECT 1 FROM media_assets") == []
