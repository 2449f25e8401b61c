"""What a message has to look like: every kind of fault is told, and no value makes the rules raise (SAFE-1)."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import messages
from dlpipe.core.messages import MAX_BYTES, MAX_DEPTH, Fault
from tests.fuzz.forgery import CALLS, good

HEADERS = good("dlpipe.head", [], "an-id")["headers"]
PROPERTIES = good("dlpipe.head", [], "an-id")["properties"]
CALL = CALLS[0][1]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


# ── the frame that kombu puts around it ──


def test_envelope_of_kombu_is_right() -> None:
    frame = good("dlpipe.head", CALL, "an-id")
    assert messages.of_envelope(frame) is None
    assert messages.of_envelope({**frame, "headers": None, "content-type": None, "content-encoding": None}) is None


@pytest.mark.parametrize("raw", [[], None, 5, "x", {}, {"properties": {}}])
def test_envelope_of_another_kind_is_told(raw: object) -> None:
    assert messages.of_envelope(raw) is Fault.ENVELOPE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("body", None), ("body", []), ("body", "x" * (MAX_BYTES + 1)), ("headers", [1]), ("headers", "x"),
        ("properties", None), ("properties", []), ("content-type", 5), ("content-encoding", []),
    ],
)  # fmt: skip
def test_envelope_with_a_part_of_another_kind_is_told(key: str, value: object) -> None:
    assert messages.of_envelope({**good("dlpipe.head", CALL, "an-id"), key: value}) is Fault.ENVELOPE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delivery_tag", None), ("delivery_tag", []), ("delivery_tag", "a\nb"), ("body_encoding", 5),
        ("body_encoding", "rot13"), ("delivery_info", None), ("delivery_info", [1]), ("delivery_info", {}),
        ("delivery_info", {"exchange": "", "routing_key": 5}),
    ],
)  # fmt: skip
def test_envelope_by_which_it_could_not_be_put_back_is_told(key: str, value: object) -> None:
    frame = good("dlpipe.head", CALL, "an-id")
    assert messages.of_envelope({**frame, "properties": {**PROPERTIES, key: value}}) is Fault.ENVELOPE


# ── what surrounds the body ──


def of_frame(**changed: Any) -> Fault | None:
    parts = {
        "content_type": "application/json", "encoding": "utf-8", "properties": PROPERTIES, "headers": HEADERS,
        "body": b"[]",
    }  # fmt: skip
    return messages.of_frame(**{**parts, **changed})


@pytest.mark.parametrize("encoding", [None, "utf-8", "UTF-8", "us-ascii"])
def test_frame_of_json_text_is_right(encoding: str | None) -> None:
    assert of_frame(encoding=encoding) is None


@pytest.mark.parametrize(
    ("part", "value", "fault"),
    [
        ("content_type", None, Fault.CONTENT),
        ("content_type", [], Fault.CONTENT),
        ("content_type", "application/data", Fault.CONTENT),
        ("content_type", "application/x-python-serialize", Fault.CONTENT),
        ("content_type", "application/x-yaml", Fault.CONTENT),
        ("encoding", 5, Fault.CONTENT),
        ("encoding", "klingon", Fault.CONTENT),
        ("encoding", "binary", Fault.CONTENT),
        ("body", None, Fault.BODY),
        ("body", [], Fault.BODY),
        ("body", b" " * (MAX_BYTES + 1), Fault.BODY),
        ("properties", None, Fault.ENVELOPE),
        ("properties", {"reply_to": [1]}, Fault.ENVELOPE),
        ("properties", {"priority": "x"}, Fault.ENVELOPE),
        ("headers", None, Fault.HEADERS),
        ("headers", [1], Fault.HEADERS),
        ("headers", {**HEADERS, "more": nested(MAX_DEPTH)}, Fault.HEADERS),
        ("headers", {**HEADERS, "compression": "zlib"}, Fault.HEADERS),
    ],
)
def test_frame_of_another_kind_is_told(part: str, value: object, fault: Fault) -> None:
    assert of_frame(**{part: value}) is fault


BAD_HEADERS: tuple[tuple[str, Any], ...] = (
    ("timelimit", 5), ("timelimit", "ab"), ("timelimit", [1, 2, 3]), ("timelimit", ["a", "b"]), ("timelimit", [-1, 0]),
    ("timelimit", [float("nan"), None]), ("timelimit", [True, None]), ("timelimit", [10**400, None]),
    ("eta", 5), ("eta", "x"), ("eta", []), ("eta", "9999-12-31T23:59:59+14:00"), ("eta", "0001-01-01T00:00:00"),
    ("expires", "x"), ("expires", []), ("retries", "x"), ("retries", -1), ("retries", 10**400), ("retries", True),
    ("id", []), ("id", 5), ("id", "a\nb"), ("id", "x" * 256), ("task", []), ("task", {}), ("root_id", []),
    ("shadow", [1]), ("shadow", "\x1b[31m"), ("group", [1]), ("ignore_result", "x"), ("stamped_headers", 5),
    ("stamped_headers", [5]), ("stamps", []), ("argsrepr", 5), ("chain", 5), ("callbacks", [5]), ("chord", "x"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_HEADERS)
def test_header_of_another_kind_is_told_wherever_it_stands(name: str, value: object) -> None:
    assert of_frame(headers={**HEADERS, name: value}) is Fault.HEADERS
    first = {"task": "dlpipe.head", "id": "x", "args": [], "kwargs": {}, name: value}
    assert messages.of_body(first, {}) is Fault.HEADERS


@pytest.mark.parametrize("value", ["", "2026-11-20T12:00:00+00:00", "2026-11-20T12:00:00.5Z"])
def test_header_with_a_time_that_can_be_computed_with_is_right(value: str) -> None:
    assert of_frame(headers={**HEADERS, "eta": value, "expires": value, "timelimit": [30, 10.5]}) is None


def test_limit_of_nothing_and_a_name_of_any_length_are_right_as_celery_has_them() -> None:
    """A limit of 0 is none, to Celery."""
    more = {"timelimit": [0, 0], "shadow": "long " * 1_000}
    assert of_frame(headers={**HEADERS, **more}) is None
    assert messages.of_body({"task": "dlpipe.head", "id": "x", **more}, {}) is None


def test_header_that_no_rule_knows_is_left_alone() -> None:
    assert of_frame(headers={**HEADERS, "traceparent": ["of", {"a": "later"}, "release"]}) is None


# ── the body ──


@pytest.mark.parametrize("payload", [CALL, [[], {}, {}]])
def test_body_of_three_parts_is_right(payload: Any) -> None:
    assert messages.of_body(payload, HEADERS) is None


@pytest.mark.parametrize(
    "payload",
    [
        None, 5, "abc", {}, [], [[], {}], [[], {}, {}, {}], ["ab", {}, {}], [[], [], {}], [[], {}, "x"],
        [[], {}, None], [None, None, None], [[], {}, {"chain": 5}], [[], {}, {"chain": [5]}],
        [[], {}, {"chain": [{"task": "x", "args": 5}]}], [[], {}, {"callbacks": 5}], [[], {}, {"chord": 5}],
        [[], {}, {"group": [1]}], [[nested(MAX_DEPTH)], {}, {}],
    ],
)  # fmt: skip
def test_body_of_another_shape_is_told(payload: Any) -> None:
    assert messages.of_body(payload, HEADERS) is Fault.BODY


@pytest.mark.parametrize("missing", ["task", "id"])
def test_message_without_a_name_is_told(missing: str) -> None:
    assert messages.of_body([[], {}, {}], {**HEADERS, "task": "x", missing: None}) is Fault.HEADERS
    assert messages.of_body({"task": "x", "id": "y", missing: None}, {}) is Fault.HEADERS


def test_body_of_protocol_one_is_right() -> None:
    assert messages.of_body({"task": "dlpipe.plan", "id": "x", "args": [], "kwargs": {"url": "u"}}, {}) is None


# ── the arguments ──


def stage(job_id: str, run: int) -> None: ...


def plan(url: str, **fields: Any) -> None: ...


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "right"),
    [
        (stage, ["a", 1], {}, True),
        (stage, ["a"], {"run": 1}, True),
        (stage, [], {}, False),
        (stage, ["a", 1, 2], {}, False),
        (stage, ["a", 1], {"weight": 3}, False),
        (stage, [{}, 1], {}, False),
        (stage, ["a\x00", 1], {}, False),
        (stage, ["\ud800", 1], {}, False),
        (stage, ["a", "1"], {}, False),
        (stage, ["a", True], {}, False),
        (stage, ["a", 2**63], {}, False),
        (plan, [], {"url": "u", "work_id": ["judged by the planner"]}, True),
        (plan, [], {"work_id": "W"}, False),
    ],
)
def test_arguments_are_those_that_the_task_takes(
    task: Any, args: list[Any], kwargs: dict[str, Any], *, right: bool
) -> None:
    assert messages.of_arguments(signature(task), args, kwargs) is (None if right else Fault.ARGUMENTS)


# ── of all there is ──


@given(ANY)
def test_any_json_is_judged_and_never_raises(value: Any) -> None:
    messages.of_envelope(value)
    messages.of_envelope({**good("dlpipe.head", CALL, "x"), "properties": value})
    messages.of_frame(value, value, value, value, value)
    messages.of_frame("application/json", "utf-8", PROPERTIES, dict.fromkeys(HEADERS, value), b"")
    messages.of_body(value, HEADERS)
    messages.of_body([[], {}, dict.fromkeys(HEADERS, value)], HEADERS)
    messages.of_arguments(signature(stage), [value, value], {})
