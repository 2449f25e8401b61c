"""The names of things: job keys, op keys, job ids, artifact ids.

Equal input gives the equal key in every process, on every machine, for good: golden values are tested.
Change the meaning of a key only together with its version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from uuid import UUID, uuid5

KEY_VERSION = 1
_NAMESPACE = UUID("6f1c8c0e-3d0b-5b7e-9a55-6d1b1f4b8f10")

Scalar = str | int | bool | None


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Mapping[str, Scalar]) -> bytes:
    """One spelling per value: sorted keys, no blanks, UTF-8, no NaN."""
    return _JSON.encode(value).encode("utf-8")


def _key(kind: str, fields: Mapping[str, Scalar]) -> str:
    body: dict[str, Scalar] = {**fields, "kind": kind, "v": KEY_VERSION}
    if len(body) != len(fields) + 2:
        raise ValueError("'kind' and 'v' are the key's own fields")
    return hashlib.sha256(canonical_json(body)).hexdigest()


def job_key(tenant: str, project: str, work_id: str, artifact_id: str, canonical_url: str) -> str:
    return _key(
        "artifact_job",
        {
            "tenant": tenant,
            "project": project,
            "work_id": work_id,
            "artifact_id": artifact_id,
            "canonical_url": canonical_url,
        },
    )


def job_id(key: str) -> str:
    """The id that belongs to a job key: a caller can compute it, and no purge can change it."""
    return str(uuid5(_NAMESPACE, key))


def op_key(kind: str, job_id: str, **extras: Scalar) -> str:
    """The key of one stage's effect on one job.

    What depends on the network carries `run`; what depends on the content carries its sha256.
    """
    if "job_id" in extras or "op" in extras:
        raise ValueError("'job_id' and 'op' are the key's own fields")
    return _key("op", {**extras, "op": kind, "job_id": job_id})


def artifact_uuid(index_op_key: str) -> str:
    """The id of the record that an INDEX op makes, so that making it again makes the same."""
    return str(uuid5(_NAMESPACE, f"artifact:{index_op_key}"))
