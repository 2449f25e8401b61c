"""Log lines: what they are about, in both forms, and nothing that leaves its line (OPS-7, SAFE-2)."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import Any

import pytest

from dlpipe.core.about import about
from dlpipe.core.escape import escape
from dlpipe.telemetry.lines import JsonLines, TextLines, Unless, dress

SECRET = "https://files.example/a?X-Amz-Signature=5ec2e7"


class Desk:
    def __init__(self, form: str) -> None:
        self.said = io.StringIO()
        self.log = logging.Logger("desk")  # noqa: LOG001 - not known to the other loggers
        handler = logging.StreamHandler(self.said)
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        self.log.addHandler(handler)
        dress(self.log, form)

    @property
    def text(self) -> str:
        return self.said.getvalue()

    @property
    def one(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


def test_text_has_the_fields_behind_its_line() -> None:
    desk = Desk("text")
    with about(stage="head", job_id="j1", run=2), about(tenant="t", request_id=None):
        desk.log.info("done: %s", "HEAD_DONE", extra={"fields": {"elapsed_ms": 7, "host": None}})
    assert desk.text == "[INFO] done: HEAD_DONE stage=head job_id=j1 run=2 tenant=t elapsed_ms=7\n"


def test_json_has_the_fields_as_fields() -> None:
    desk = Desk("json")
    with about(stage="head", job_id="j1", run=2):
        desk.log.warning("failed: %s", "x", extra={"fields": {"code": "http_404", "due_after_s": None}})
    one = desk.one
    assert one.pop("time").endswith("+00:00")
    assert one.pop("process") > 0
    assert one == {
        "level": "warning", "logger": "desk", "message": "failed: x",
        "stage": "head", "job_id": "j1", "run": 2, "code": "http_404",
    }  # fmt: skip


def test_outside_the_block_a_line_is_about_nothing() -> None:
    desk = Desk("text")
    with pytest.raises(KeyError), about(job_id="j1"):
        raise KeyError
    desk.log.info("idle")
    assert desk.text == "[INFO] idle\n"


def test_what_one_thread_works_on_is_not_what_another_does() -> None:
    desk = Desk("text")
    with about(job_id="j1"):
        thread = threading.Thread(target=lambda: desk.log.info("other"))
        thread.start()
        thread.join()
    assert desk.text == "[INFO] other\n"


EVIL = ["a\r[INFO] forged", "a\x1b[2Jb", "a\x00b", "a\x85b", "a\x9b2Jb", "a\x7fb", "a\u2028b", "a\u202eb", "a\u2066b"]


@pytest.mark.parametrize("evil", EVIL)
def test_control_characters_do_not_get_out(evil: str) -> None:
    for form in ("text", "json"):
        desk = Desk(form)
        with about(request_id=evil):
            desk.log.info("said %s", evil)
        assert len(desk.text.splitlines()) == 1, form
        assert escape(desk.text, keep="\n") == desk.text


@pytest.mark.parametrize("evil", [*EVIL, "a\n[INFO] forged"])
def test_what_an_error_says_begins_no_line_and_moves_no_cursor(evil: str) -> None:
    for form in ("text", "json"):
        desk = Desk(form)
        try:
            raise ValueError(evil)
        except ValueError:
            with about(request_id=evil):
                desk.log.exception("it broke: %s", evil, stack_info=True)
        assert escape(desk.text, keep="\n") == desk.text
        first, *more = desk.text.splitlines()
        assert "it broke" in first
        assert all(line.startswith("    ") for line in more)


def test_an_error_keeps_its_traceback() -> None:
    for form in ("text", "json"):
        desk = Desk(form)
        try:
            raise ValueError("why")
        except ValueError:
            with about(job_id="j1"):
                desk.log.exception("it broke")
        if form == "json":
            assert "ValueError: why" in desk.one["traceback"]
        else:
            first, *rest = desk.text.splitlines()
            assert first == "[ERROR] it broke job_id=j1"
            assert rest[-1] == "    ValueError: why"


def test_a_field_that_the_message_says_is_not_said_twice() -> None:
    desk = Desk("text")
    desk.log.error("debug_id=d1 KeyError", extra={"fields": {"debug_id": "d1"}})
    assert desk.text == "[ERROR] debug_id=d1 KeyError\n"


def test_dressing_twice_is_dressing_once() -> None:
    desk = Desk("text")
    dress(desk.log, "text")
    (handler,) = desk.log.handlers
    assert isinstance(handler.formatter, TextLines)
    assert not isinstance(handler.formatter._inner, TextLines)
    dress(desk.log, "json")
    assert isinstance(handler.formatter, JsonLines)


def test_celerys_own_lines_are_kept_back_for_tasks_that_speak_for_themselves() -> None:
    keeps = Unless(["dlpipe.head"]).filter

    def record(level: int, name: str | None) -> logging.LogRecord:
        made = logging.LogRecord("celery.app.trace", level, "", 0, "m", None, None)
        if name:
            made.data = {"name": name, "id": "1"}
        return made

    assert not keeps(record(logging.INFO, "dlpipe.head"))
    assert keeps(record(logging.ERROR, "dlpipe.head"))
    assert keeps(record(logging.INFO, "dlpipe.dispatch"))
    assert keeps(record(logging.INFO, None))
