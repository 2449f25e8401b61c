"""A request is checked as a whole before anything changes, and its id is the caller's to compute (PLAN-2 … PLAN-5)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe.core import keys
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import MAX_MIRRORS, JobSpec, Scope, job_spec
from dlpipe.net.urls import parse

URL = "https://example.com/a.pdf"
SHA = "0123456789abcdef" * 4


def made(**fields: Any) -> JobSpec:
    return job_spec(parse, **{"url": URL, **fields})


def test_a_url_alone_is_a_request() -> None:
    spec = made()
    assert spec.scope == Scope("default", "default")
    assert spec.work_id == "url-" + hashlib.sha256(URL.encode()).hexdigest()[:32]
    assert spec.artifact_id == "file"
    assert (spec.priority, spec.mirrors, spec.not_before) == (0, (), None)
    assert (spec.ext, spec.expected_sha256, spec.expected_media_type, spec.max_bytes) == (None, None, None, None)


def test_the_default_work_tells_nothing_of_the_url() -> None:
    assert "token" not in made(url="https://example.com/a?token=hunter2").work_id


def test_a_caller_can_compute_the_id_of_a_job() -> None:
    spec = made(url="HTTPS://Example.com:443/a.pdf#x", work_id="w", artifact_id="a", tenant_id="t", project_id="p")
    key = keys.job_key("t", "p", "w", "a", URL)
    assert (spec.job_key, spec.job_id) == (key, keys.job_id(key))


def test_only_what_identifies_a_file_makes_another_job() -> None:
    plain = made(work_id="w", artifact_id="a")
    other = made(
        work_id="w", artifact_id="a", ext="pdf", sha256=SHA, media_type="application/pdf", max_bytes=1, priority=5,
        mirrors=["https://mirror.example/a"], not_before="2030-01-01", request_id="r",
    )  # fmt: skip
    assert other.job_id == plain.job_id
    for changed in (
        {"work_id": "W"},
        {"artifact_id": "b"},
        {"tenant_id": "t"},
        {"project_id": "p"},
        {"url": URL + "?"},
    ):
        assert made(**{"work_id": "w", "artifact_id": "a", **changed}).job_id != plain.job_id


def test_what_is_given_is_kept_in_one_spelling() -> None:
    spec = made(
        ext="PDF", sha256=SHA.upper(), media_type="Application/PDF", max_bytes=0, priority=-100,
        mirrors=[" https://Mirror.example/a#x "], request_id="r-1",
    )  # fmt: skip
    assert (spec.ext, spec.expected_sha256, spec.expected_media_type) == (".pdf", SHA, "application/pdf")
    assert (spec.max_bytes, spec.priority, spec.request_id) == (0, -100, "r-1")
    assert spec.mirrors == ("https://Mirror.example/a",)


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2026-12-31T06:00:00Z", datetime(2026, 12, 31, 6, tzinfo=UTC)),
        ("2026-12-31T06:00:00+02:00", datetime(2026, 12, 31, 4, tzinfo=UTC)),
        ("2026-12-31T06:00:00", datetime(2026, 12, 31, 6, tzinfo=UTC)),  # no zone: UTC, never the machine's
        ("2026-12-31", datetime(2026, 12, 31, tzinfo=UTC)),
        (datetime(2026, 12, 31, 6, tzinfo=timezone(timedelta(hours=-5))), datetime(2026, 12, 31, 11, tzinfo=UTC)),
        (datetime(2026, 12, 31, 6), datetime(2026, 12, 31, 6, tzinfo=UTC)),  # noqa: DTZ001 - what a caller may pass
    ],
)
def test_a_time_is_kept_as_utc(given: str | datetime, moment: datetime) -> None:
    found = made(not_before=given).not_before
    assert found == moment
    assert found.tzinfo is UTC


REFUSED: list[tuple[str, Any, str, str]] = [
    ("url", None, "url_invalid", "nothing"),
    ("url", b"https://example.com/", "url_invalid", "bytes"),
    ("url", "ftp://example.com/", "url_scheme", "another scheme"),
    ("tenant_id", "", "tenant_invalid", "empty"),
    ("tenant_id", "../x", "tenant_invalid", "a way out"),
    ("tenant_id", None, "tenant_invalid", "nothing"),
    ("project_id", "a b", "project_invalid", "a blank"),
    ("project_id", 7, "project_invalid", "a number"),
    ("work_id", "", "work_id_invalid", "empty"),
    ("work_id", "a\x00b", "work_id_invalid", "NUL, which PostgreSQL cannot hold"),
    ("work_id", "a\nb", "work_id_invalid", "a line break"),
    ("work_id", "\ud800", "work_id_invalid", "half a surrogate pair"),
    ("work_id", "x" * 513, "work_id_invalid", "too long"),
    ("work_id", 7, "work_id_invalid", "a number"),
    ("artifact_id", "", "artifact_id_invalid", "empty"),
    ("artifact_id", "\x9f", "artifact_id_invalid", "a control character of the upper range"),
    ("artifact_id", "x" * 513, "artifact_id_invalid", "too long"),
    ("ext", ".exe", "extension_unknown", "not on the list"),
    ("ext", 7, "ext_invalid", "a number"),
    ("sha256", "", "sha256_invalid", "empty"),
    ("sha256", SHA[1:], "sha256_invalid", "too short"),
    ("sha256", SHA + "\n", "sha256_invalid", "a line break at the end"),
    ("sha256", "g" * 64, "sha256_invalid", "no digits"),
    ("sha256", 7, "sha256_invalid", "a number"),
    ("media_type", "", "media_type_invalid", "empty"),
    ("media_type", "pdf", "media_type_invalid", "no subtype"),
    ("media_type", "application/pdf; charset=x", "media_type_invalid", "a parameter"),
    ("media_type", "a/b\n", "media_type_invalid", "a line break at the end"),
    ("media_type", 7, "media_type_invalid", "a number"),
    ("max_bytes", -1, "max_bytes_invalid", "negative"),
    ("max_bytes", True, "max_bytes_invalid", "a yes"),
    ("max_bytes", "7", "max_bytes_invalid", "a text"),
    ("max_bytes", 1.5, "max_bytes_invalid", "a fraction"),
    ("max_bytes", 2**63, "max_bytes_invalid", "more than a database holds"),
    ("priority", 101, "priority_invalid", "too high"),
    ("priority", -101, "priority_invalid", "too low"),
    ("priority", False, "priority_invalid", "a no"),
    ("priority", None, "priority_invalid", "nothing"),
    ("mirrors", "https://example.com/", "mirrors_invalid", "one text"),
    ("mirrors", [URL] * (MAX_MIRRORS + 1), "mirrors_invalid", "too many"),
    ("mirrors", None, "mirrors_invalid", "nothing"),
    ("mirrors", 7, "mirrors_invalid", "a number"),
    ("mirrors", {"https://example.com/": 1}, "mirrors_invalid", "a mapping"),
    ("mirrors", [None], "mirror_invalid", "nothing within"),
    ("mirrors", ["ftp://example.com/"], "url_scheme", "another scheme within"),
    ("mirrors", ["https://u:p@example.com/"], "url_userinfo", "a password within"),
    ("not_before", "tomorrow", "not_before_invalid", "a word"),
    ("not_before", "", "not_before_invalid", "empty"),
    ("not_before", 7, "not_before_invalid", "a number"),
    ("not_before", "9999-12-31T23:59:59-05:00", "not_before_invalid", "after the end of time"),
    ("not_before", "0001-01-01T00:00:00+05:00", "not_before_invalid", "before its beginning"),
    ("request_id", "", "request_id_invalid", "empty"),
    ("request_id", "x" * 129, "request_id_invalid", "too long"),
    ("request_id", "a\rb", "request_id_invalid", "a carriage return"),
]


@pytest.mark.parametrize(
    ("field", "value", "code"), [row[:3] for row in REFUSED], ids=[f"{row[0]}: {row[3]}" for row in REFUSED]
)
def test_a_request_that_cannot_be_is_refused_with_its_code(field: str, value: object, code: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        made(**{field: value})
    assert refusal.value.code == code
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("work_id", "x" * 512),
        ("artifact_id", "文" * 512),
        ("request_id", "x" * 128),
        ("max_bytes", 2**63 - 1),
        ("priority", 100),
        ("mirrors", (URL,) * MAX_MIRRORS),
        ("ext", ""),
        ("media_type", "a" * 127 + "/" + "b" * 127),
    ],
)
def test_what_is_just_within_bounds_is_planned(field: str, value: object) -> None:
    made(**{field: value})


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.text(max_size=3))
names = st.sampled_from([
    "url", "work_id", "artifact_id", "tenant_id", "project_id", "ext", "sha256", "media_type", "max_bytes", "mirrors",
    "priority", "not_before", "request_id",
])  # fmt: skip


@given(st.dictionaries(names, anything, max_size=3))
def test_whatever_stands_in_a_line_of_json_is_planned_or_refused(fields: dict[str, Any]) -> None:
    try:
        spec = made(**fields)
    except InvalidInput:
        return
    assert spec.job_id == keys.job_id(spec.job_key)
