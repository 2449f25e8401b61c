"""Results are read as they were written, and what does not fit its type is refused both ways (LEDGER-4)."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core.errors import ResultUnreadable
from dlpipe.core.flow import OpType
from dlpipe.core.results import (
    MAX_JSON_BYTES,
    TYPES,
    DedupeAction,
    DedupeResult,
    FinalizeResult,
    HeadResult,
    IndexResult,
    Recorded,
    Result,
    Results,
    ResumeResult,
    StreamResult,
    decode,
    encode,
)

EXAMPLES: dict[OpType, Result] = {
    OpType.HEAD: HeadResult(200, "f" * 64, etag='"a"', content_length=7),
    OpType.RESUME: ResumeResult("resume", "same_etag", 4096),
    OpType.STREAM: StreamResult("0" * 64, 7, 0, 7, 3, 1, "text/plain", length_unproven=True),
    OpType.FINALIZE: FinalizeResult("0" * 64, 7, "local:t/p/00/" + "0" * 64, already_there=False),
    OpType.INDEX: IndexResult("0" * 64, "local:t/p/00/" + "0" * 64, "u"),
    OpType.DEDUPE: DedupeResult(DedupeAction.HARDLINK, 7),
}

WRONG: dict[Any, list[Any]] = {
    str: [1, True, None, ["a"], {"a": "b"}],
    int: ["1", True, 1.0, None, [1]],
    bool: [0, 1, "true", None],
    DedupeAction: ["moved", "DOWNLOAD", 1, None, ["copy"], {"copy": 1}],
    str | None: [1, False, ["a"]],
    int | None: ["1", False, 1.5],
}
"""Values that look near enough to slip through."""


def stored(op: OpType, **changes: Any) -> str:
    return json.dumps({"v": 1, **asdict(EXAMPLES[op]), **changes})


def cases() -> list[Any]:
    return [
        pytest.param(op, name, value, id=f"{op}.{name}={value!r}")
        for op, kind in TYPES.items()
        for name, hint in get_type_hints(kind).items()
        for value in WRONG[hint]
    ]


@pytest.mark.parametrize("op", list(OpType))
def test_a_result_is_read_as_it_was_written(op: OpType) -> None:
    found = decode(op, encode(op, EXAMPLES[op]))
    assert found == EXAMPLES[op]
    assert type(found) is TYPES[op]


@given(st.data())
def test_whatever_fits_a_type_is_read_as_it_was_written(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(OpType))
    kind: type[Any] = TYPES[op]
    result: Result = data.draw(st.builds(kind, **{name: drawn(hint) for name, hint in hints(op)}))
    assert decode(op, encode(op, result)) == result


def hints(op: OpType) -> list[tuple[str, Any]]:
    return list(get_type_hints(TYPES[op]).items())


def drawn(hint: Any) -> st.SearchStrategy[Any]:
    known: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=40),
        int: st.integers(),
        bool: st.booleans(),
        DedupeAction: st.sampled_from(DedupeAction),
        str | None: st.none() | st.text(max_size=40),
        int | None: st.none() | st.integers(),
    }
    return known[hint]


@pytest.mark.parametrize(("op", "name", "value"), cases())
def test_a_value_of_another_type_is_refused_on_reading(op: OpType, name: str, value: object) -> None:
    with pytest.raises(ResultUnreadable):
        decode(op, stored(op, **{name: value}))


@pytest.mark.parametrize(("op", "name", "value"), cases())
def test_a_value_of_another_type_is_refused_on_writing(op: OpType, name: str, value: object) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(ResultUnreadable):
        encode(op, replace(EXAMPLES[op], **changes))


@pytest.mark.parametrize(
    ("op", "name"),
    [(op, field.name) for op, kind in TYPES.items() for field in fields(kind) if field.default is MISSING],
)
def test_a_missing_field_is_refused(op: OpType, name: str) -> None:
    body = json.loads(stored(op))
    del body[name]
    with pytest.raises(ResultUnreadable, match=name):
        decode(op, json.dumps(body))


def test_a_field_with_a_default_may_be_missing() -> None:
    text = '{"v": 1, "http_status": null, "final_url_sha256": ""}'
    assert decode(OpType.HEAD, text) == HeadResult(None, "")


def test_a_field_of_a_newer_worker_is_passed_over() -> None:
    assert decode(OpType.RESUME, stored(OpType.RESUME, colour="blue")) == EXAMPLES[OpType.RESUME]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"decision": "fresh", "reason": "new"}', id="no version"),
        pytest.param('{"v": 2, "decision": "fresh", "reason": "new"}', id="a newer version"),
        pytest.param('{"v": "1", "decision": "fresh", "reason": "new"}', id="a version in words"),
        pytest.param('["v", 1]', id="a list"),
        pytest.param("null", id="nothing"),
        pytest.param("", id="empty"),
        pytest.param('{"v": 1, "decision": "fre', id="cut off"),
    ],
)
def test_what_is_not_a_result_of_this_version_is_refused(text: str) -> None:
    with pytest.raises(ResultUnreadable):
        decode(OpType.RESUME, text)


@pytest.mark.parametrize("op", list(OpType))
def test_an_op_stores_only_its_own_type(op: OpType) -> None:
    for other, result in EXAMPLES.items():
        if other is not op:
            with pytest.raises(ResultUnreadable, match=type(result).__name__):
                encode(op, result)


def test_what_is_too_large_is_refused_and_never_cut() -> None:
    room = MAX_JSON_BYTES - len(encode(OpType.RESUME, ResumeResult("fresh", "")))
    text = encode(OpType.RESUME, ResumeResult("fresh", "x" * room))
    assert len(text) == MAX_JSON_BYTES
    assert decode(OpType.RESUME, text) == ResumeResult("fresh", "x" * room)
    with pytest.raises(ResultUnreadable, match="larger"):
        encode(OpType.RESUME, ResumeResult("fresh", "x" * (room + 1)))


def test_a_stage_sees_the_latest_result_and_whether_it_is_of_its_own_run() -> None:
    head, resume = EXAMPLES[OpType.HEAD], EXAMPLES[OpType.RESUME]
    found = Results(2, {OpType.HEAD: Recorded(1, head), OpType.RESUME: Recorded(2, resume)})
    assert (found.latest(OpType.HEAD), found.of_run(OpType.HEAD)) == (head, None)
    assert (found.latest(OpType.RESUME), found.of_run(OpType.RESUME)) == (resume, resume)
    assert (found.latest(OpType.STREAM), found.of_run(OpType.STREAM)) == (None, None)
