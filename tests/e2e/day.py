"""Plays the page of a day's work against the real command; `python -m tests.e2e.day` writes down what was said.

A block of the page is a transcript: lines after `$ ` are run by bash, one after the other, the lines below are what
they said, on both streams. A comment right above a block names what happens in the world first (`HAPPENS`).
"""

from __future__ import annotations

import csv
import os
import pty
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.conftest import Command
from tests.servers import wait_until
from tests.webserver import WebServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "day.md"
PAPERS, SURVEYS = "https://papers.example", "https://surveys.example"
SURVEY = b"survey\n" * (1 << 20)
_BLOCK = re.compile(r"(?:^<!-- (?P<first>.*?) -->\n)?^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

# What is another each time, in the order in which it is looked for.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?UTC|\+00:00|Z)?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "<day>"),
    (re.compile(r"\b(bytes_written|resumed_from_bytes|range_start|elapsed_ms|fsync_ms)=\d+"), r"\1=<count>"),
    (re.compile(r"\(schema \d{4}\)"), "(schema <number>)"),
    (re.compile(r"\(debug id [0-9a-f]+\)"), "(debug id <id>)"),
    (re.compile(r"\bworker(\d) \d+|\b(helper|beat|ready) \d+"), "<pid>"),
    # the op of a paused stream, before and after reconcile has come by
    (re.compile(r"STREAM +(started|abandoned) +(\d+ .*?) (-|fence_overtaken)$", re.MULTILINE), r"STREAM left \2"),
    # `dlpipe top`: how far the machine has come by then
    (re.compile(r"\b\d+ files, [\d.]+ [KM]iB in the last minute"), "<count> files, <size> in the last minute"),
    (re.compile(r"\bqueue +\d+ waiting"), "queue <count> waiting"),
    (re.compile(r"(reconcile +)\d+ (s|min) ago: .*"), r"\1<measure> ago: <found>"),
    (re.compile(r"(stream surveys\.example +)[\d.]+ [KM]iB\b"), r"\1<size>"),
    (re.compile(r"\b[0-9a-f]{6}\.\d+\b"), "<worker>"),
    (re.compile(r"\b(sha256 )[0-9a-f]{64}"), r"\1<hash>"),  # of an archive, which holds times
    (re.compile(r"\b\d{8}T\d{6}Z-[0-9a-f]{12}\b"), "<archive>"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|min|h|(B|KiB|MiB)/s)(?=[\s,;.)]|$)"), "<measure>"),
)
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass
class Step:
    command: str
    said: str


@dataclass
class Block:
    first: str | None
    steps: list[Step]
    start: int
    end: int


def blocks(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page):
        steps: list[Step] = []
        for line in found["text"].splitlines(keepends=True):
            if line.startswith("$ "):
                steps.append(Step(line[2:].rstrip("\n"), ""))
            else:
                steps[-1].said += line
        yield Block(found["first"], steps, found.start("text"), found.end("text"))


def plain(text: str) -> tuple[str, list[str]]:
    """What is the same each day, and the ids, which are not."""
    text = re.sub(r"\n {20,}", " ", text)  # a last column that goes on below itself
    ids = _ID.findall(text)
    text = _ID.sub("<id>", text)
    for varies, name in _VARIES:
        text = varies.sub(name, text)
    return re.sub(r"[ \t]+", " ", text).strip(), ids


class Day:
    """One user, one folder, two servers, from planning in the morning to cleaning up in the evening."""

    def __init__(self, folder: Path, papers: WebServer, surveys: WebServer) -> None:
        self._folder, self._papers, self._surveys = folder, papers, surveys
        self._command = Command(folder / "dlpipe-data")
        self._up: subprocess.Popen[str] | None = None
        self._make_world()

    def _make_world(self) -> None:
        for n in range(1, 977):
            if not 100 < n <= 140:
                self._papers.put(f"/paper-{n:04}.pdf", _paper(n))
        for n in (977, 978, 979):
            self._papers.put(f"/paper-{n:04}.pdf", b"<html><title>Please log in</title></html>")
        self._surveys.put("/survey.tar", SURVEY, bytes_per_s=25_000)
        rows = [(f"{PAPERS}/paper-{n:04}.pdf", f"paper-{n:04}", "application/pdf") for n in range(1, 980)]
        bad = [
            "",
            "ftp://papers.example/old.pdf",
            "papers.example/paper.pdf",
            "https://ada:secret@papers.example/a.pdf",
        ]
        for n in range(20):
            rows.insert(40 * n + 7, (bad[n % len(bad)], f"broken-{n:02}", "application/pdf"))
        rows.append((f"{SURVEYS}/survey.tar", "survey", ""))
        with (self._folder / "works.csv").open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("url", "work_id", "media_type"))
            out.writerows((self._real(url), work, kind) for url, work, kind in rows)

    def _real(self, text: str) -> str:
        """The page's servers have names; here they are ports of the loopback."""
        text = text.replace(PAPERS, self._papers.url).replace(SURVEYS, self._surveys.url)
        return text.replace("@papers.example", "@" + self._papers.url.removeprefix("http://"))

    def play(self, block: Block) -> list[str]:
        """What each step of the block says today, with the names of the page."""
        if block.first is not None:
            for what in block.first.split(", then "):
                HAPPENS[what](self)
        return [self._step(step.command) for step in block.steps]

    def _step(self, command: str) -> str:
        if command == "dlpipe up &":
            self._up = self._command.start("up")
            wait_until(self._is_up, "the stack answers", within_s=120)
            return ""
        said = self._on_a_terminal(self._real(command))
        for url, name in ((self._papers.url, PAPERS), (self._surveys.url, SURVEYS)):
            host, _, port = url.removeprefix("http://").partition(":")
            said = said.replace(url, name).replace(f"{host}:{port}", name).replace(host, name.removeprefix("https://"))
        return said.replace(str(self._folder), "/home/ada")

    def _on_a_terminal(self, command: str) -> str:
        """Run by bash on a terminal of 110 columns that knows no colours and no cursor."""
        reading, writing = pty.openpty()
        termios.tcsetwinsize(writing, (40, 110))
        quoted = f'dlpipe() {{ {shlex.quote(sys.executable)} -m dlpipe "$@"; }}\n{command}'
        environment = self._command.environment(TERM="dumb", NO_COLOR="1", LC_ALL="C.UTF-8")
        child = subprocess.Popen(
            ["bash", "-c", quoted], cwd=self._folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=writing, stderr=writing, start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        said = b""
        with open(reading, "rb", buffering=0) as terminal:
            while True:
                try:
                    piece = terminal.read(1 << 16)
                except OSError:  # what a terminal says when nobody holds its other end
                    break
                if not piece:
                    break
                said += piece
        child.wait(60)
        return "".join(f"{line.rstrip()}\n" for line in said.decode().replace("\r\n", "\n").splitlines())

    def _is_up(self) -> bool:
        return (self._folder / "dlpipe-data" / "run" / "stack.json").exists()

    def all_is_done(self) -> None:
        wait_until(lambda: self._open() == 0, "all jobs but the survey come to their end", within_s=300)

    def survey_is_under_way(self) -> None:
        wait_until(lambda: self._surveys.sent("/survey.tar") >= 1 << 18, "the survey is being received", within_s=120)

    def papers_are_back(self) -> None:
        for n in range(101, 141):
            self._papers.put(f"/paper-{n:04}.pdf", _paper(n))

    def a_paper_has_changed(self) -> None:
        self._papers.put("/paper-0042.pdf", _paper(42) + b"% corrected\n")

    def survey_line_is_free(self) -> None:
        self._surveys.put("/survey.tar", SURVEY)

    def survey_is_there(self) -> None:
        wait_until(lambda: self._open(but="") == 0, "the survey comes to its end", within_s=120)

    def _open(self, but: str = "survey") -> int:
        query = """SELECT count(*) FROM jobs JOIN artifact_jobs USING (job_id)
                   WHERE status IN ('pending', 'processing') AND work_id <> ?"""
        with closing(sqlite3.connect(f"file:{self._folder}/dlpipe-data/ledger.db?mode=ro", uri=True)) as ledger:
            return int(ledger.execute(query, (but,)).fetchone()[0])

    def end(self) -> None:
        self._command.end()


HAPPENS: dict[str, Callable[[Day], None]] = {
    "all but the survey is done": Day.all_is_done,
    "the survey is under way": Day.survey_is_under_way,
    "papers 101 to 140 are back on the server": Day.papers_are_back,
    "the publisher corrects paper 42": Day.a_paper_has_changed,
    "the line to the survey is free": Day.survey_line_is_free,
    "the survey is there": Day.survey_is_there,
}


def _paper(n: int) -> bytes:
    return b"%PDF-1.7\n" + f"paper {n}\n".encode() * (200 + n)


@contextmanager
def a_day() -> Iterator[Day]:
    with tempfile.TemporaryDirectory(prefix="dld") as made, WebServer() as papers, WebServer("127.0.0.2") as surveys:
        day = Day(Path(made), papers, surveys)
        try:
            yield day
        finally:
            day.end()


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    with a_day() as day:
        said = [(block, day.play(block)) for block in blocks(page)]
    for block, today in reversed(said):
        text = "".join(f"$ {step.command}\n{now}" for step, now in zip(block.steps, today, strict=True))
        page = page[: block.start] + text + page[block.end :]
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
