"""Log lines with the ids of what they are about: as text behind the line, or each line as one JSON object.

Whatever a message holds, it begins no line of its own: control and bidi characters are escaped, and what has several
lines, as a traceback, is set in (SAFE-2).
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from dlpipe.core import about
from dlpipe.core.escape import escape

_LAID_OUT = "\n\t"
"""Line breaks and tabs of a traceback stay; what could move a cursor or hide a line does not."""
_SET_IN = "    "


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ids around the line, then what was said with it."""
    said: Mapping[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in {**about.current(), **said}.items() if value is not None}


class TextLines(logging.Formatter):
    """What another formatter makes of a record, with the fields at the end of its first line."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        clean = copy.copy(record)
        clean.msg, clean.args = escape(record.getMessage(), _LAID_OUT), None
        if record.exc_info:  # the other formatter takes this for what it made of it before
            clean.exc_text = escape(self._inner.formatException(record.exc_info), _LAID_OUT)
        if record.stack_info:
            clean.stack_info = escape(record.stack_info, _LAID_OUT)
        first, *more = self._inner.format(clean).split("\n")
        fields = (f"{name}={escape(str(value))}" for name, value in fields_of(record).items())
        line = " ".join([first, *(one for one in fields if one not in first)])
        return "\n".join([line, *(_SET_IN + one for one in more)])


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, process, message, the fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **fields_of(record),
        }
        task = getattr(record, "data", None)
        if isinstance(task, Mapping) and "id" in task:  # Celery's own lines about a task
            line |= {"task": task.get("name"), "task_id": task["id"]}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


def dress(logger: logging.Logger, form: str) -> None:
    """Let all handlers of a logger write lines of this form."""
    for handler in logger.handlers:
        if form == "json":
            handler.setFormatter(JsonLines())
        elif not isinstance(handler.formatter, TextLines | JsonLines):
            handler.setFormatter(TextLines(handler.formatter or logging.Formatter()))


class Unless(logging.Filter):
    """Keeps back Celery's two lines about each task that says for itself, in one, what it came to."""

    def __init__(self, tasks: Collection[str]) -> None:
        super().__init__()
        self._tasks = frozenset(tasks)

    def filter(self, record: logging.LogRecord) -> bool:
        task = getattr(record, "data", None)
        named = isinstance(task, Mapping) and task.get("name") in self._tasks
        return record.levelno > logging.INFO or not named
