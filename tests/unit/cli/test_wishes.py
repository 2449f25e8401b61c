"""Pause, resume, cancel and retry from the command line, by id and by filter (JOB-8, JOB-9)."""

from __future__ import annotations

import pytest

import dlpipe
from dlpipe import wiring
from dlpipe.core.errors import InvalidInput
from dlpipe.core.states import State
from dlpipe.core.torrents import DownloadStatus
from tests.unit.cli.conftest import Desk

URL = "http://files.example/a.bin"
UNKNOWN = "00000000-0000-5000-8000-000000000000"


@pytest.fixture
def failed(desk: Desk) -> list[str]:
    jobs = [desk.plan(f"http://gone.example/{n}") for n in range(3)]
    desk.drive()
    return jobs


def test_a_paused_job_is_shown_as_such_and_goes_on_when_resumed(desk: Desk) -> None:
    desk.source.put(URL, b"x" * 100)
    job = desk.plan(URL)
    assert desk.command("pause", job).out == f"{job} pending, paused\n"
    assert desk.command("pause", job, "--json").record == {"job_id": job, "status": "pending", "paused": True}
    assert desk.command("show", job, "--json").record["paused_at"] is not None
    assert [row["job_id"] for row in desk.command("jobs", "--paused", "--json").records] == [job]
    assert "paused" in desk.command("jobs").out
    assert "dlpipe resume" in desk.command("plan", URL).err
    desk.drive()
    assert desk.source.asked == []
    assert desk.command("resume", job).out == f"{job} pending\n"
    desk.drive()
    assert desk.state(job) is State.DEDUPED
    late = desk.command("pause", job)
    assert (late.code, late.out) == (1, f"{job} completed (nothing to pause)\n")
    assert desk.command("resume", job).code == 1


@pytest.mark.parametrize("wish", ["pause", "resume", "cancel", "retry", "refresh", "replay"])
def test_unknown_and_foreign_ids_answer_alike(desk: Desk, wish: str) -> None:
    job, before = desk.plan(URL), desk.everything()
    unknown, foreign = desk.command(wish, UNKNOWN), desk.command(wish, job, "--tenant", "other")
    assert (unknown.code, unknown.out, foreign.code, foreign.out) == (1, "", 1, "")
    assert unknown.err.replace(UNKNOWN, "ID") == foreign.err.replace(job, "ID")
    assert desk.everything() == before


@pytest.mark.parametrize("wish", ["pause", "resume", "cancel", "retry", "refresh", "replay"])
def test_ids_or_a_filter_and_not_both_or_neither(desk: Desk, wish: str, failed: list[str]) -> None:
    before = desk.everything()
    for words in ([], [failed[0], "--host", "gone.example"], [failed[0], "--dry-run"], ["--dry-run"]):
        assert desk.command(wish, *words).code == 2, words
    assert desk.everything() == before


def test_failures_are_counted_by_code_and_retried_by_host_and_code(desk: Desk, failed: list[str]) -> None:
    (tally,) = desk.command("jobs", "--status", "failed", "--by", "code", "--json").records
    assert (tally["code"], tally["jobs"], tally["job_id"] in failed) == ("http_404", 3, True)
    assert tally["error_message_safe"]
    assert tally["error_debug_id"]
    listed = desk.command(
        "jobs", "--status", "failed", "--code", "http_404", "--host", "GONE.example", "--json"
    ).records
    assert {row["job_id"] for row in listed} == set(failed)
    assert desk.command("jobs", "--code", "http_500", "--json").out == ""
    before = desk.everything()
    dry = desk.command("retry", "--code", "http_404", "--host", "gone.example", "--dry-run")
    assert all(job in dry.out for job in failed)
    assert dry.out.endswith("3 jobs would be made due again; nothing was changed\n")
    assert desk.everything() == before
    assert desk.command("retry", "--code", "http_500").out == "0 jobs made due again\n"
    done = desk.command("retry", "--code", "http_404", "--json").records
    assert {row["job_id"] for row in done} == set(failed)
    assert {desk.view(job).status.value for job in failed} == {"pending"}


def test_a_single_retry_says_what_became_of_it(desk: Desk, failed: list[str]) -> None:
    assert desk.command("retry", failed[0]).out == f"{failed[0]} pending\n"
    again = desk.command("retry", failed[0], "--json")
    assert (again.code, again.record["status"]) == (0, "pending")


def test_a_filter_that_is_empty_means_nothing_and_not_everything(desk: Desk, failed: list[str]) -> None:
    """As a variable of a script is that nobody set."""
    before = desk.everything()
    for words in (["--host", ""], ["--work", ""], ["--code", ""], ["--host", "", "--code", "http_404"]):
        ran = desk.command("retry", *words)
        assert (ran.code, ran.out) == (0, "0 jobs made due again\n"), words
        assert desk.command("jobs", *words, "--ids").out == "", words
    assert desk.everything() == before
    assert list(dlpipe.list_jobs(host="")) == []
    assert dlpipe.count_jobs("code", host="") == []


def test_jobs_are_counted_by_what_is_known_and_by_nothing_else(desk: Desk, failed: list[str]) -> None:
    (count,) = dlpipe.count_jobs("code", host="GONE.example")
    assert (count.value, count.jobs, count.job_id in failed) == ("http_404", 3, True)
    with pytest.raises(InvalidInput) as refused:
        dlpipe.count_jobs("url")
    assert refused.value.code == "count_invalid"


def test_a_refresh_of_what_is_on_its_way_says_that_it_is_none(desk: Desk) -> None:
    desk.source.put(URL, b"x" * 100)
    job, waiting = desk.fetch(URL), desk.plan("http://other.example/a")
    late = desk.command("refresh", waiting)
    assert (late.code, late.out) == (1, f"{waiting} pending (nothing to refresh)\n")
    for _ in range(2):  # repeated, it is as wanted as it was
        ran = desk.command("refresh", job)
        assert (ran.code, ran.out) == (0, f"{job} pending\n")


def test_cancel_by_host_reaches_what_is_not_done(desk: Desk) -> None:
    here, there = desk.plan(URL), desk.plan("http://other.example/a")
    assert desk.command("cancel", "--host", "files.example").out == "1 job canceled\n"
    assert (desk.state(here), desk.state(there)) == (State.CANCELED, State.PLANNED)


def test_a_replay_by_id_says_how_the_job_stands_and_a_wrong_stage_is_refused(desk: Desk) -> None:
    desk.source.put(URL, b"x" * 100)
    job = desk.fetch(URL)
    before = desk.everything()
    assert desk.command("replay", job, "--from", "head").code == 2
    assert desk.everything() == before
    desk.source.pages.clear()
    assert desk.command("replay", job, "--from", "index").out == f"{job} pending\n"
    assert desk.command("show", job, "--json").record["purpose"] == "replay"
    assert "without the network" in desk.command("why", job).out
    desk.drive()
    assert (desk.state(job), desk.view(job).run) == (State.DEDUPED, 2)
    waiting = desk.plan("http://other.example/a")
    late = desk.command("replay", waiting)
    assert (late.code, late.out) == (1, f"{waiting} pending (nothing to replay)\n")
    assert desk.command("replay", "--host", "files.example").out == "1 job marked for a replay\n"
    back = desk.command("cancel", job)
    assert (back.code, back.out) == (0, f"{job} completed (its further run is taken back)\n")
    ops = desk.command("ops", job, "--json").out
    assert ("from_index" in ops, "local:" in ops) == (True, False)


def test_what_is_made_due_while_nobody_works_says_how_to_start_workers(
    desk: Desk, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "no worker runs on this data directory; start one with: dlpipe up"
    monkeypatch.setattr(wiring, "idle", lambda: True)
    assert words in desk.command("retry", failed[0]).err
    assert words not in desk.command("retry", "--host", "nowhere.example").err
    assert words not in desk.command("retry", "--code", "http_404", "--dry-run").err
    assert words in desk.command("retry", "--code", "http_404").err
    assert words not in desk.command("pause", failed[0]).err
    assert words in desk.command("resume", failed[0]).err
    assert words not in desk.command("cancel", "--all").err
    assert "Nothing runs here now" in desk.command("why", desk.plan(URL)).out
    monkeypatch.setattr(wiring, "idle", lambda: False)
    assert words not in desk.command("refresh", failed[0], "--json").err
    assert "Nothing runs here now" not in desk.command("why", desk.plan(URL)).out


def test_from_python_many_are_meant_by_a_filter_or_by_saying_so(desk: Desk, failed: list[str]) -> None:
    before, heard = desk.everything(), list[str]()
    for many in (dlpipe.cancel_jobs, dlpipe.pause_jobs, dlpipe.resume_jobs, dlpipe.retry_jobs, dlpipe.refresh_jobs,
                 dlpipe.replay_jobs):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            many()
        assert refused.value.code == "filter_missing"
        assert many(host="") == 0  # as a variable is that nobody set
    with pytest.raises(InvalidInput) as refused:
        dlpipe.replay_jobs(everything=True, from_stage="head")
    assert refused.value.code == "replay_from_invalid"
    assert dlpipe.retry_jobs(code="http_404", dry_run=True, told=lambda job: heard.append(job.job_id)) == 3
    assert sorted(heard) == sorted(failed)
    assert desk.everything() == before
    assert dlpipe.retry_jobs(host="GONE.example") == 3
    assert dlpipe.retry_jobs(everything=True) == 0
    assert dlpipe.pause_jobs(everything=True) == 3
    assert dlpipe.resume_jobs(host="gone.example", told=lambda job: heard.append(job.status)) == 3
    assert heard[3:] == ["pending"] * 3
    assert dlpipe.cancel_jobs(everything=True, project_id="other") == 0
    assert dlpipe.cancel_jobs(everything=True) == 3


def test_a_command_that_is_mistyped_is_answered_with_those_that_are_near(desk: Desk) -> None:
    ran = desk.command("job")
    assert (ran.code, "No such command 'job'. Did you mean jobs?" in ran.err) == (2, True)
    assert "Did you mean" not in desk.command("xyzzy").err


def test_of_several_downloads_each_is_told_by_itself(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlpipe import tasks
    from dlpipe.pipeline import torrents

    states = {"one": DownloadStatus.COMPLETED, "two": DownloadStatus.CANCELED}
    monkeypatch.setattr(tasks, "torrent_deps", lambda: None)
    monkeypatch.setattr(torrents, "cancel", lambda _deps, _scope, job_id, _removal: states[job_id])
    ran = desk.command("torrents", "cancel", "one", "two")
    assert (ran.code, ran.out) == (1, "one completed (nothing to cancel)\ntwo canceled\n")
