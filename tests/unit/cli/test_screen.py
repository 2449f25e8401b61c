"""What `dlpipe top` prints, at any size."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlpipe.cli.screen import render, span
from dlpipe.core.top import Failure, LastRound, Reason, Running, Snapshot, Waiting, Worker

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MIB = 1 << 20


def running(n: int, host: str = "files.example.org") -> Running:
    job = f"{n:08x}-1111-5111-8111-111111111111"
    return Running(job, f"http://{host}/x", host, 1, "stream", "4f2a11.4711", 7.2, 3 * MIB, 12 * MIB, 1.5 * MIB, 6.0)


def waits(
    reason: Reason,
    host: str,
    code: str | None,
    jobs: int,
    until: datetime | None = None,
    *,
    port: str = "",
    open_s: float | None = None,
    cooling_s: float | None = None,
) -> Waiting:
    job = f"{jobs:08x}-2222-5222-8222-222222222222"
    return Waiting(reason, host, f"https://{host}{port}", code, jobs, until, job, open_s, cooling_s)


SEEN = Snapshot(
    at=AT,
    tenant_id="default",
    project_id="papers",
    counts={"pending": 5000, "processing": 2, "completed": 41, "failed": 3},
    running=(running(1), running(2)),
    waiting=(
        waits(
            Reason.POSTPONED,
            "slow.example.org",
            "host_busy",
            17,
            AT + timedelta(seconds=42),
            open_s=12.0,
            cooling_s=3.0,
        ),
        waits(Reason.DUE, "files.example.org", None, 4),
    ),
    workers=(Worker("4f2a11.4711", 2),),
    failures=(Failure("http_404", 3, AT),),
    finished_last_minute=41,
    finished_bytes_last_minute=41 * MIB,
    rate_bytes_s=3.0 * MIB,
    queued=9,
    in_flight=11,
    window=2000,
    reconcile=LastRound(20.0, {"orphans_requeued": 1}),
)


def test_what_waits_names_the_port_and_the_first_job() -> None:
    one = waits(Reason.POSTPONED, "a.example", "retry_after", 1, AT + timedelta(minutes=2), port=":8443")
    (title, row) = [line for line in render(replace(SEEN, waiting=(one,))) if "UNTIL" in line or "retry_after" in line]
    assert title.split()[-2:] == ["FIRST", "JOB"]
    assert row.split() == [
        "1", "put", "off", "a.example:8443", "retry_after", "03:06:05", "(2", "min)", "-", one.first_job_id,
    ]  # fmt: skip


def test_a_terminal_of_80_by_24() -> None:
    assert render(SEEN, 80, 24) == [
        "dlpipe top  default/papers  2026-01-02 03:04:05 UTC",
        "jobs       pending 5000+  processing 2  completed 41  failed 3",
        "flow       41 files, 41.0 MiB in the last minute, 3.0 MiB/s now",
        "queue      9 waiting, 11 of 2000 in flight; workers: 4f2a11.4711 (2)",
        "reconcile  20 s ago: orphans_requeued 1",
        "running (2)",
        "JOB      STAGE  HOST               DONE       OF      RATE ETA LEASE WORKER",
        "00000001 stream files.example.… 3.0 MiB 12.0 MiB 1.5 MiB/s 6 s   7 s 4f2a11.4711",
        "00000002 stream files.example.… 3.0 MiB 12.0 MiB 1.5 MiB/s 6 s   7 s 4f2a11.4711",
        "waiting (2)",
        "JOBS WAITS   HOST              CODE      UNTIL           HELD UP BY",
        "  17 put off slow.example.org  host_busy 03:04:47 (42 s) circuit 12 s, cool-do…",
        "   4 due     files.example.org -         -               -",
        "failed (1)",
        "JOBS CODE     LAST",
        "   3 http_404 2026-01-02 03:04:05",
    ]


def test_a_pipe_is_given_all_of_it() -> None:
    text = "\n".join(render(replace(SEEN, running=tuple(running(n) for n in range(50)))))
    assert "00000031-1111-5111-8111-111111111111" in text
    assert "4f2a11.4711" in text
    assert "circuit 12 s, cool-down 3 s" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [1, 10, 20, 40, 60, 80, 100, 300])
@pytest.mark.parametrize("height", [1, 3, 8, 12, 24, 200])
@pytest.mark.parametrize("jobs", [0, 2, 190])
def test_nothing_is_wider_or_longer_than_the_terminal(width: int, height: int, jobs: int) -> None:
    seen = replace(SEEN, running=tuple(running(n, f"{'h' * (n % 70)}.example") for n in range(jobs)))
    lines = render(seen, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_on_a_low_terminal_every_table_is_seen_and_says_what_is_left_out() -> None:
    seen = replace(SEEN, running=tuple(running(n) for n in range(190)), troubles=("Redis is away",))
    lines = render(seen, 80, 24)
    assert "! Redis is away" in lines
    assert {"running (190)", "waiting (2)", "failed (1)"} <= set(lines)
    (more,) = [line for line in lines if "more" in line]
    shown = sum(line.startswith("0000") for line in lines)
    assert more == f"  … and {190 - shown} more"


def test_text_from_elsewhere_cannot_move_the_cursor() -> None:
    evil = replace(running(1), host="a\x1b[2Jb", worker="w\x07")
    for lines in (render(replace(SEEN, running=(evil,))), render(replace(SEEN, running=(evil,)), 200, 50)):
        assert "\\x1b[2J" in "".join(lines)
        assert not any(c in "".join(lines) for c in "\x1b\x07")


def test_before_anything_was_seen_only_the_trouble_is_told() -> None:
    lines = render(Snapshot(None, "t", "p", {}, troubles=("the database did not answer",)), 80, 24)
    assert lines == ["dlpipe top  t/p  never seen", "! the database did not answer"]


def test_what_nobody_could_be_asked_about_is_said_to_be_unknown() -> None:
    text = "\n".join(render(replace(SEEN, queued=None, reconcile=None, rate_bytes_s=None, workers=())))
    assert "not known waiting" not in text
    assert "queue      its depth is not known" in text
    assert "no round is known" in text
    assert "none has a job" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3.0, "0 s"), (99.4, "99 s"), (100, "1 min"), (5_999, "99 min"), (6_000, "1 h"), (2e5, "2 d")],
)
def test_spans_are_short(seconds: float, said: str) -> None:
    assert span(seconds) == said
