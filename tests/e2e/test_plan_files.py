"""Large input files with the real command: bounded memory, and interrupted and repeated without harm (PLAN-5)."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlpipe.cli.lines import MAX_LINE_BYTES
from tests.e2e.conftest import Command
from tests.servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

LINES = 100_000
_MEASURED = """\
import os, resource, sys
from dlpipe.cli import main
own = os.getpid()
try:
    main(sys.argv[1:])
finally:
    if os.getpid() == own:  # and not what a fetch forks
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def works(count: int) -> Iterator[str]:
    yield "work;link;note\n"
    for n in range(count):
        # One in a hundred is bad.
        yield f"W{n};{'ftp' if n % 100 == 7 else 'https'}://h{n % 50}.example/files/{n}.pdf;x\n"


def packed(file: Path, count: int) -> Path:
    with gzip.open(file, "wt", compresslevel=1) as stream:
        stream.writelines(works(count))
    return file


MAPS = ("--map", "url=link", "--map", "work_id=work", "--ignore-unknown")


def planned(command: Command) -> list[str]:
    with sqlite3.connect(command.home / "ledger.db") as ledger:
        found = [row[0] for row in ledger.execute("SELECT work_id FROM artifact_jobs ORDER BY work_id")]
    ledger.close()
    return found


def measured(command: Command, *words: str) -> tuple[int, int, str]:
    """Exit status, the most memory that it had in KiB, and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words],
        env=command.environment(),
        cwd=command.home.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    *errors, peak = done.stderr.splitlines()
    return done.returncode, int(peak), "\n".join(errors)


def test_ten_times_the_lines_take_no_more_memory(tmp_path: Path) -> None:
    peaks = {}
    for count in (LINES // 10, LINES):
        command = Command(tmp_path / f"data{count}")
        file = packed(tmp_path / f"{count}.csv.gz", count)
        code, peaks[count], errors = measured(command, "plan", "-i", str(file), *MAPS, "--json")
        assert (code, errors.count("refused: ")) == (1, count // 100)
        assert len(planned(command)) == count - count // 100
    assert peaks[LINES] - peaks[LINES // 10] < 24 << 10, peaks


CANCELED = "https://h.example/canceled"
BAD = ("ftp://h.example/{n}", "http://u:p@h.example/{n}", "two words {n}", "https://[h/{n}")


@pytest.mark.parametrize("words", ["", "--json --rejects REJECTS", "--strict"])
def test_a_fetch_of_lines_that_come_to_nothing_takes_no_more_memory_for_forty_times_as_many(
    words: str, tmp_path: Path
) -> None:
    peaks: dict[int, int] = {}
    command = Command(tmp_path / "data")
    job = command.run("plan", CANCELED, "--json").record["job_id"]
    assert command.run("cancel", job).code == 0
    for count in (500, 20_000):
        file, rejects = tmp_path / f"{count}.txt", tmp_path / f"rejects{count}"
        # And some that can be planned, and are for one job that is at its end.
        lines = (BAD[n % 4].format(n=n) + "\n" if n % 100 < 96 else f"{CANCELED}\n" for n in range(count))
        file.write_text("".join(lines))
        given = words.replace("REJECTS", str(rejects)).split()
        code, peaks[count], errors = measured(command, "fetch", "-i", str(file), *given)
        bad = count * 96 // 100
        assert (code, errors.count("refused: ")) == (2 if words == "--strict" else 1, bad)
        each = f"{bad // 4:,}"
        for kind in ("url_scheme", "url_userinfo", "url_control_character", "url_invalid"):
            assert f"{each} {kind}" in errors
        assert f"; the first: {file}, line 1 [url_scheme]; {file}, line 2 [url_userinfo]; " in errors
        assert ("--rejects" in words) == rejects.exists()
        if rejects.exists():
            assert rejects.read_text().count("#dlpipe: ") == bad
    # A record kept of each took a KiB.
    assert peaks[20_000] - peaks[500] < 8 << 10, peaks


def test_a_fetch_shows_the_first_refusals_and_counts_the_others(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"ftp://h.example/{n}\n" for n in range(25)))
    ran = command.run("fetch", "-i", str(file))
    header, *rows = ran.out.splitlines()
    assert (ran.code, header) == (1, "status\tsize\thow\tfile")
    assert rows == [*(f"refused\t-\t-\tftp://h.example/{n}" for n in range(20)), "refused\t-\t-\tand 5 more requests"]
    assert f"refused: {file}, line 25 ftp://h.example/24: " in ran.err
    assert f"refused in all: 25 url_scheme; the first: {file}, line 1 [url_scheme]; " in ran.err
    assert len(command.run("fetch", "-i", str(file), "--json").records) == 25


@pytest.mark.parametrize("before", [0, 1], ids=["packed", "plain"])
def test_a_line_of_a_gigabyte_is_refused_by_its_number_in_bounded_memory(before: int, tmp_path: Path) -> None:
    command = Command(tmp_path / "data")
    small, bomb = tmp_path / "small.txt", tmp_path / "bomb"
    small.write_text("https://files.example/1\n")
    with gzip.open(bomb, "wb", compresslevel=1) if not before else open(bomb, "wb") as stream:
        stream.write(b"https://files.example/1\n")
        if before:
            stream.seek((1 << 30) - 1, os.SEEK_CUR)  # a hole: it takes no room
            stream.write(b"\0")
        else:
            for _ in range(1 << 6):
                stream.write(bytes(1 << 24))
        stream.write(b"\nhttps://files.example/3\n")
    _, plain, _ = measured(command, "plan", "-i", str(small))
    code, peak, errors = measured(command, "plan", "-i", str(bomb))
    assert code == 1
    assert f"refused: {bomb}, line 2: the line is longer than {MAX_LINE_BYTES:,} bytes [line_too_long]" in errors
    assert len(planned(command)) == 2
    assert peak - plain < 16 << 10, (plain, peak)


@pytest.mark.parametrize("words", [(), ("--strict",)], ids=["as it comes", "strict"])
def test_interrupted_in_the_middle_and_repeated_the_same_jobs_are_there(
    words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    count = 40_000
    file = tmp_path / "a.jsonl.gz"
    with gzip.open(file, "wt", compresslevel=1) as stream:
        stream.writelines(
            json.dumps({"url": f"https://h{n % 9}.example/{n}", "work_id": f"W{n}"}) + "\n" for n in range(count)
        )
    child = command.start("plan", "-i", str(file), *words)
    wait_until(lambda: (command.home / "ledger.db").exists() and rows(command), "some are planned", within_s=120)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    there = rows(command)
    assert 0 < there < count, "it was over before it was interrupted"
    assert f"{there} requests are planned. To repeat the command is harmless" in err
    assert "Traceback" not in err
    again = command.run("plan", "-i", str(file), *words)
    assert (again.code, again.out) == (0, f"{count - there} planned, {there} on their way\n"), again.err
    assert sorted(planned(command)) == sorted(f"W{n}" for n in range(count))


def rows(command: Command) -> int:
    ledger = sqlite3.connect(command.home / "ledger.db")
    try:
        found = ledger.execute("SELECT count(*) FROM artifact_jobs").fetchone()
    except sqlite3.OperationalError:
        return 0
    finally:
        ledger.close()
    return int(found[0])


def test_a_plan_that_waits_for_its_input_is_interrupted_at_once(command: Command) -> None:
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "dlpipe", "plan", "-i", "-"],
        env=command.environment(), cwd=command.home.parent, stdin=read, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(read)
    os.write(write, b"https://files.example/1\n")
    wait_until(lambda: (command.home / "ledger.db").exists() and _has_tables(command), "it has begun")
    wait_until(lambda: _unread(write) == 0, "it has taken the first line")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    os.close(write)
    assert child.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def _unread(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)


def _has_tables(command: Command) -> bool:
    ledger = sqlite3.connect(command.home / "ledger.db")
    try:
        return int(ledger.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]) > 5
    finally:
        ledger.close()


def test_a_bar_is_shown_on_a_terminal_and_nothing_but_lines_elsewhere(command: Command, tmp_path: Path) -> None:
    file = packed(tmp_path / "a.csv.gz", 6_000)
    ours, theirs = pty.openpty()
    said: list[bytes] = []

    def listen() -> None:
        try:
            while piece := os.read(ours, 1 << 16):
                said.append(piece)
        except OSError:  # the other end is closed
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    done = subprocess.run(
        [sys.executable, "-m", "dlpipe", "plan", "-i", str(file), *MAPS],
        env=command.environment(TERM="xterm", COLUMNS="100"),
        cwd=command.home.parent, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    listener.join(timeout=20)
    os.close(ours)
    shown = b"".join(said).decode()
    assert done.returncode == 1
    assert "planning" in shown
    assert "planned" in shown
    assert f"{file.name}, line 9 " in shown  # what is refused is told above the bar
    piped = command.run("plan", "-i", str(file), *MAPS)
    assert "\x1b" not in piped.err
    assert "planning" not in piped.err
