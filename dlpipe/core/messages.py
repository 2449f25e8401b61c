"""What a message has to look like before Celery handles it; anything else is dropped (ADR 45).

Everything that can write to the broker can send anything, and Celery, kombu and the pools trust types that nothing has
checked. These rules read plain values as JSON gives them, and say what is wrong with them; they never raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from inspect import Parameter, Signature
from typing import Any

MAX_BYTES = 16 << 20
"""A message of dlpipe has a few hundred bytes; this leaves room for tasks of a deployment's own."""
MAX_DEPTH = 64
"""Deeper values pass the JSON parser, and exceed the recursion limit when they are pickled for a child process."""
MAX_NAME = 255
_MAX_TIME_S = 10**8
_MAX_COUNT = 10**6
_MAX_INT = 2**63
_YEARS = range(1971, 9999)
"""Timestamps outside of these cannot be computed with in every time zone."""
JSON = "application/json"
_TEXT = (None, "utf-8", "utf8", "us-ascii")


class Fault(StrEnum):
    """Why a message is dropped. These are the reasons under which `dlpipe_messages_dropped` counts it."""

    TEXT = "malformed_text"
    ENVELOPE = "malformed_envelope"
    CONTENT = "malformed_content"
    HEADERS = "malformed_headers"
    BODY = "malformed_body"
    ARGUMENTS = "malformed_arguments"
    TASK = "unknown_task"
    HANDLING = "malformed_other"


def of_envelope(raw: object) -> Fault | None:
    """The frame that kombu puts around a message where the broker has none of its own, as on Redis."""
    if not isinstance(raw, dict):
        return Fault.ENVELOPE
    properties, body = raw.get("properties"), raw.get("body")
    fits = (
        isinstance(properties, dict)
        and isinstance(body, str)
        and len(body) <= MAX_BYTES
        and isinstance(raw.get("headers"), dict | None)
        and properties.get("body_encoding") in (None, "base64", "utf-8")
        and _is_name(properties.get("delivery_tag"))
        and _is_address(properties.get("delivery_info"))
        and _are_strings(raw, "content-type", "content-encoding")
    )
    return None if fits else Fault.ENVELOPE


def _is_address(info: object) -> bool:
    """kombu puts a message back by these two, also when a worker ends."""
    return isinstance(info, dict) and all(isinstance(info.get(key), str) for key in ("exchange", "routing_key"))


def of_frame(content_type: object, encoding: object, properties: object, headers: object, body: object) -> Fault | None:
    """All that surrounds the body of a task's message, on any broker."""
    if content_type != JSON or not (encoding is None or (isinstance(encoding, str) and encoding.lower() in _TEXT)):
        return Fault.CONTENT
    if not isinstance(body, bytes | str) or len(body) > MAX_BYTES:
        return Fault.BODY
    if not isinstance(properties, Mapping) or not _fit(properties, _PROPERTIES):
        return Fault.ENVELOPE
    if not isinstance(headers, dict) or "compression" in headers or is_deep(headers) or not _fit(headers, _HEADERS):
        return Fault.HEADERS
    return None


def of_body(payload: object, headers: Mapping[str, Any]) -> Fault | None:
    """The decoded body: of protocol 2 `[args, kwargs, embed]`, of protocol 1 a dict that names the task itself."""
    if is_deep(payload):
        return Fault.BODY
    if "task" not in headers:
        if not isinstance(payload, dict):
            return Fault.BODY
        if not _fit(payload, _HEADERS) or not _are_named(payload):
            return Fault.HEADERS
        args, kwargs, embed = payload.get("args", []), payload.get("kwargs", {}), payload
    else:
        if not _are_named(headers):
            return Fault.HEADERS
        if not isinstance(payload, list) or len(payload) != 3:
            return Fault.BODY
        args, kwargs, embed = payload
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict):
        return Fault.BODY
    return None if _fit(embed, _HEADERS) else Fault.BODY


def of_arguments(signature: Signature, args: list[Any], kwargs: dict[str, Any]) -> Fault | None:
    """What the task's function takes: as many, and strings and whole numbers where it says so."""
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return Fault.ARGUMENTS
    fits = all(_is_a(bound[name], one.annotation) for name, one in signature.parameters.items() if _is_one(one, bound))
    return None if fits else Fault.ARGUMENTS


def _is_one(parameter: Parameter, bound: Mapping[str, Any]) -> bool:
    return parameter.name in bound and parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)


def _is_a(value: object, annotation: object) -> bool:
    if annotation in (str, "str"):
        return isinstance(value, str) and not any(sign == "\x00" or "\ud800" <= sign <= "\udfff" for sign in value)
    if annotation in (int, "int"):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INT
    return True


def is_deep(value: object) -> bool:
    """Is it nested further than MAX_DEPTH? Without recursion, as that is what it is about."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return False
    return True


def _within(value: object) -> list[object]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    return [inner for inner in value if isinstance(inner, dict | list)] if isinstance(value, list) else []


def _fit(values: Mapping[str, Any], rules: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Every known name has a value of its kind, if any. Names that no rule knows may come from a later Celery."""
    return all(rules[name](value) for name, value in values.items() if value is not None and name in rules)


def _are_named(values: Mapping[str, Any]) -> bool:
    return values.get("task") is not None and values.get("id") is not None


def _are_strings(values: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(values.get(name), str | None) for name in names)


def _is_name(value: object) -> bool:
    """It becomes a key, and a part of log lines."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and _is_text(value)


def _is_label(value: object) -> bool:
    return value == "" or _is_name(value)


def _is_text(value: object) -> bool:
    """Shown in log lines, and no key."""
    return isinstance(value, str) and value.isprintable()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value <= _MAX_COUNT


def _is_time(value: Any) -> bool:
    """Empty is none, to Celery."""
    if not isinstance(value, str):
        return False
    try:
        return not value or datetime.fromisoformat(value).year in _YEARS
    except ValueError:
        return False


def _are_limits(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(one is None or _is_limit(one) for one in value)


def _is_limit(value: Any) -> bool:
    return (_is_int(value) or (isinstance(value, float) and math.isfinite(value))) and 0 <= value <= _MAX_TIME_S


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(_is_name(one) for one in value)


def _are_steps(value: Any) -> bool:
    """Signatures of further tasks: the steps of a chain, callbacks and errbacks."""
    return isinstance(value, list) and all(_is_step(one) for one in value)


def _is_step(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_name(value.get("task"))
        and isinstance(value.get("args", []), list)
        and isinstance(value.get("kwargs", {}), dict)
        and isinstance(value.get("options", {}), dict)
        and isinstance(value.get("subtask_type"), str | None)
    )


def _is_kind(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_PROPERTIES: Mapping[str, Callable[[Any], bool]] = {
    "correlation_id": _is_label,
    "reply_to": _is_label,
    "priority": _is_count,
}
_HEADERS: Mapping[str, Callable[[Any], bool]] = {
    "task": _is_name,
    "id": _is_name,
    **dict.fromkeys(("root_id", "parent_id", "group", "lang", "origin", "meth"), _is_label),
    "shadow": _is_text,
    "argsrepr": _is_kind(str),
    "kwargsrepr": _is_kind(str),
    "retries": _is_count,
    "group_index": _is_count,
    "replaced_task_nesting": _is_count,
    "timelimit": _are_limits,
    "eta": _is_time,
    "expires": _is_time,
    "ignore_result": _is_kind(bool),
    "utc": _is_kind(bool),
    "stamped_headers": _are_names,
    "stamps": _is_kind(dict),
    "chain": _are_steps,
    "callbacks": _are_steps,
    "errbacks": _are_steps,
    "chord": _is_step,
}
"""By name, wherever it stands: in the headers, beside the arguments, or in a body of protocol 1."""
