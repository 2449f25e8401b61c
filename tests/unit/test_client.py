"""What programs rely on: names, parameters and answers of the Python calls, which mypy and this table hold still."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, BinaryIO, assert_type

import pytest

import dlpipe
from dlpipe import client

_SCOPE = "tenant_id=default project_id=default"
_FILTER = f"* code=None host=None work_id=None everything=False dry_run=False told=None {_SCOPE}"
_OF_JOB = f"job_id * {_SCOPE}"
_OF_ARTIFACT = f"artifact_uuid * {_SCOPE}"
_WHICH = "status=None code=None host=None work_id=None paused=None"

CALLS = {
    "get_job": _OF_JOB,
    "get_purged_job": _OF_JOB,
    "explain_job": _OF_JOB,
    "list_ops": _OF_JOB,
    "list_jobs": f"* {_WHICH} limit=None after=None {_SCOPE}",
    "count_jobs": f"by * {_WHICH} limit=50 {_SCOPE}",
    "job_id_for": "url **fields",
    "get_artifact": _OF_ARTIFACT,
    "open_artifact": _OF_ARTIFACT,
    "link_artifact": f"artifact_uuid * expires_s=600.0 {_SCOPE}",
    "list_artifacts": f"* job_id=None limit=None after=None {_SCOPE}",
    "export": f"* {_SCOPE}",
    **dict.fromkeys(("cancel_job", "pause_job", "resume_job", "retry_job", "refresh_job"), _OF_JOB),
    "replay_job": f"job_id * from_stage=stream {_SCOPE}",
    **dict.fromkeys(("cancel_jobs", "pause_jobs", "resume_jobs", "retry_jobs", "refresh_jobs"), _FILTER),
    "replay_jobs": _FILTER.replace("* ", "* from_stage=stream ", 1),
}
"""A name may be added here, and a parameter with a default; what goes or is renamed breaks somebody's program."""

RECORDS = {
    "Job": "job_id scope job_type status progress state work_id artifact_id url run attempts created_at updated_at "
    "completed_at failed_at due_at request_id error_code error_message_safe error_debug_id artifacts inputs purpose "
    "fence host paused_at withdrawn_run",
    "Op": "op_key run op_type state fence started_at finished_at result_code result",
    "Artifact": "artifact_uuid tenant_id project_id job_id artifact_type content_type byte_size sha256 created_at",
    "Count": "value jobs job_id error_code error_message_safe error_debug_id",
    "Purged": "job_id status purged_at archive archive_sha256",
    "Why": "situation what next code origin until",
    "Told": "artifact_uuid job_id tenant_id project_id job_type work_id artifact_id url request_id artifact_type "
    "content_type byte_size sha256 shard_prefix created_at run resume_decision resume_reason bytes_written "
    "resumed_from_bytes elapsed_ms fsync_ms avg_write_mibps dedupe_action quota",
}


def spelled(call: Any) -> str:
    said: list[str] = []
    for one in inspect.signature(call).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in said:
            said.append("*")
        default = "" if one.default is one.empty else f"={one.default}"
        said.append(f"{'**' if one.kind is one.VAR_KEYWORD else ''}{one.name}{default}")
    return " ".join(said)


def test_every_call_takes_what_it_took() -> None:
    found = {name: spelled(getattr(dlpipe, name)) for name in client.__all__ if name.islower()}
    assert found == CALLS


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_has_what_it_had(name: str) -> None:
    assert " ".join(field.name for field in fields(getattr(dlpipe, name))) == RECORDS[name]


def test_the_table_has_every_name() -> None:
    assert {*CALLS, *RECORDS} == set(client.__all__)
    assert set(dlpipe.__all__) == {*client.__all__, "__version__", "app", "plan", "plan_many", "start_download"}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_typed_and_says_what_it_does(name: str) -> None:
    call = getattr(dlpipe, name)
    signature = inspect.signature(call)
    assert signature.return_annotation is not signature.empty
    assert all(one.annotation is not one.empty for one in signature.parameters.values())
    first, *_ = (call.__doc__ or "").splitlines()
    assert first.endswith((".", "(OPS-7).", "(PLAN-2).")), first


if TYPE_CHECKING:

    def as_others_see_it() -> None:
        """Through the names that are made when first used."""
        assert_type(dlpipe.get_job("x"), dlpipe.Job | None)
        assert_type(dlpipe.get_purged_job("x"), dlpipe.Purged | None)
        assert_type(dlpipe.explain_job("x"), dlpipe.Why | None)
        assert_type(dlpipe.list_jobs(host="e.org"), Iterator[dlpipe.Job])
        assert_type(dlpipe.count_jobs("code"), list[dlpipe.Count])
        assert_type(dlpipe.list_ops("x"), list[dlpipe.Op])
        assert_type(dlpipe.retry_job("x"), dlpipe.Job | None)
        assert_type(dlpipe.retry_jobs(code="http_404"), int)
        assert_type(dlpipe.get_artifact("x"), dlpipe.Artifact | None)
        assert_type(dlpipe.open_artifact("x"), BinaryIO)
        assert_type(dlpipe.list_artifacts(), Iterator[dlpipe.Artifact])
        assert_type(dlpipe.export(), Iterator[dlpipe.Told])
        assert_type(dlpipe.job_id_for("https://e.org/a"), str)
        assert_type(dlpipe.plan_many([{"url": "https://e.org/a"}]).created, int)
