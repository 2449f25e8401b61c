"""Names are for good: the same in every process, and different for everything that differs (PLAN-1, PLAN-2)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import uuid

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlpipe.core import keys

JOB = "9a3f5f4e-0f9b-5c3c-8f0e-3b7f4f3b2a10"
PARTS = ("default", "default", "w", "a", "https://example.com/a")

JOB_KEYS = [
    pytest.param(
        PARTS,
        "bb0acb1ad0e31784cd11462e1984ec94e7276df396d1944436daf712283a9cf7",
        "1349d86e-13ad-5d98-b258-8a9b5f0bb196",
        id="plain",
    ),
    pytest.param(
        (
            "t",
            "p",
            "Gödel: Über formal unentscheidbare Sätze",
            "文件-1",
            "https://xn--mnchen-3ya.example/%C3%BC?a=1&a=2",
        ),
        "e7a73ebe50378a1b19fff7272e30926db69d2497382513a329d5d2a567d74f9f",
        "99cc210d-f092-5b55-98e9-ab3ae6bf338e",
        id="beyond ASCII",
    ),
    pytest.param(
        ("t", "p", 'quote " and \\', "𝄞", "http://h/"),
        "93292c99351a92735f9ce2ff5894d7963849292fd31f1a9f79c2107b6ff61a1c",
        "60691246-9d42-5027-bd8a-4aa545e72ce5",
        id="escapes and planes",
    ),
]

OP_KEYS: list[tuple[str, dict[str, keys.Scalar], str]] = [
    (
        "HEAD",
        {"run": 1, "url": "https://example.com/a"},
        "c8761ddb49d6fb2827ad7b47fee77d4f3436920550e68808378f595715612a27",
    ),
    ("RESUME", {"run": 1}, "afbd2f5869b080c9672875d71303dd30ae4f17e8cb949374d35b8969134bcf8e"),
    ("STREAM", {"run": 2, "range_start": 4096}, "a22bedd4e8e30bef53c654c73829aea48bdfcc878b9a41e73461b2cd072cfe5f"),
    ("FINALIZE", {"sha256": "0" * 64}, "669ad3b087bcc65feaad21ddb659875ef52ede62eaa28720c0814e22bedecf21"),
    (
        "INDEX",
        {"sha256": "0" * 64, "pointer": "local:t/p/00/ü"},
        "a05c6c509171605284111d90875cfc1d1958e70055940ce213423a9c7e6f49e7",
    ),
    ("DEDUPE", {"sha256": None, "pointer": True}, "7a6c1f0bac2c45af9c2f1c4ef39b2d2b5f733238f08c32ea80cfdd983d3d788a"),
]


@pytest.mark.parametrize(("parts", "key", "job_id"), JOB_KEYS)
def test_job_keys_and_ids_are_what_they_always_were(
    parts: tuple[str, str, str, str, str], key: str, job_id: str
) -> None:
    assert keys.job_key(*parts) == key
    assert keys.job_id(key) == job_id


@pytest.mark.parametrize(("kind", "extras", "key"), OP_KEYS, ids=[row[0] for row in OP_KEYS])
def test_op_keys_are_what_they_always_were(kind: str, extras: dict[str, keys.Scalar], key: str) -> None:
    assert keys.op_key(kind, JOB, **extras) == key


def test_artifact_ids_are_what_they_always_were() -> None:
    assert keys.artifact_uuid("0" * 64) == "8964fbda-bda9-5eab-90a7-8c5f7ca06880"


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_a_fresh_interpreter_finds_the_same_keys(seed: str) -> None:
    program = (
        "from dlpipe.core import keys\n"
        f"key = keys.job_key(*{PARTS!r})\n"
        f"print(key, keys.job_id(key), keys.op_key('INDEX', {JOB!r}, pointer='ü', sha256='s'), keys.artifact_uuid(key))"
    )
    key = keys.job_key(*PARTS)
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told == [
        key,
        keys.job_id(key),
        keys.op_key("INDEX", JOB, sha256="s", pointer="ü"),
        keys.artifact_uuid(key),
    ]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-3, 3) | texts
names = st.text("abcdefgh_", min_size=1, max_size=6)


def spelled(fields: dict[str, keys.Scalar]) -> dict[str, tuple[type, keys.Scalar]]:
    """Equal only when the values are of the same type too: 1 and True are two things."""
    return {name: (type(value), value) for name, value in fields.items()}


@given(st.tuples(texts, texts, texts, texts, texts), st.tuples(texts, texts, texts, texts, texts))
def test_different_requests_have_different_keys(
    one: tuple[str, str, str, str, str], other: tuple[str, str, str, str, str]
) -> None:
    assert (keys.job_key(*one) == keys.job_key(*other)) is (one == other)


@given(st.tuples(texts, texts, texts, texts, texts))
def test_job_keys_are_spelled_in_the_one_way_of_all_keys(parts: tuple[str, str, str, str, str]) -> None:
    fields = dict(zip(("tenant", "project", "work_id", "artifact_id", "canonical_url"), parts, strict=True))
    body = keys.canonical_json({**fields, "kind": "artifact_job", "v": keys.KEY_VERSION})
    assert keys.job_key(*parts) == hashlib.sha256(body).hexdigest()


@given(texts)
def test_ids_are_name_based_uuids(name: str) -> None:
    assert keys.job_id(name) == str(uuid.uuid5(keys._NAMESPACE, name))


@given(texts, texts)
def test_what_moves_from_one_field_to_the_next_changes_the_key(left: str, right: str) -> None:
    assume(right)
    assert keys.job_key("t", "p", left + right, "", "u") != keys.job_key("t", "p", left, right, "u")


@given(st.dictionaries(names, scalars, max_size=4), st.dictionaries(names, scalars, max_size=4))
def test_different_effects_have_different_keys(one: dict[str, keys.Scalar], other: dict[str, keys.Scalar]) -> None:
    same = spelled(one) == spelled(other)
    assert (keys.op_key("HEAD", JOB, **one) == keys.op_key("HEAD", JOB, **other)) is same


@given(st.permutations([("run", 1), ("sha256", "s"), ("pointer", "p")]))
def test_the_order_of_fields_is_no_difference(extras: list[tuple[str, keys.Scalar]]) -> None:
    assert keys.op_key("INDEX", JOB, **dict(extras)) == keys.op_key("INDEX", JOB, run=1, sha256="s", pointer="p")


def test_kind_and_job_are_part_of_an_op_key() -> None:
    found = {keys.op_key(kind, job) for kind in ("HEAD", "STREAM") for job in (JOB, JOB[::-1])}
    assert len(found) == 4


@pytest.mark.parametrize("name", ["op", "v"])
def test_an_effect_cannot_claim_the_names_of_the_key_itself(name: str) -> None:
    with pytest.raises(ValueError, match="own fields"):
        keys.op_key("HEAD", JOB, **{name: "x"})


def test_half_a_surrogate_pair_has_no_key() -> None:
    with pytest.raises(UnicodeEncodeError):
        keys.job_key("t", "p", "\ud800", "a", "u")


def test_artifact_ids_of_different_ops_differ() -> None:
    assert len({keys.artifact_uuid(key) for key in ("0" * 64, "1" * 64)} | {keys.job_id("0" * 64)}) == 3
