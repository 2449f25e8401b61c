"""The names of things: job keys, op keys, job ids, artifact ids.

Equal input gives the equal key in every process, on every machine, for good: golden values are tested.
Change the meaning of a key only together with its version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from uuid import UUID

KEY_VERSION = 1
_NAMESPACE = UUID("6f1c8c0e-3d0b-5b7e-9a55-6d1b1f4b8f10")
_NAMESPACE_BYTES = _NAMESPACE.bytes

Scalar = str | int | bool | None


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Mapping[str, Scalar]) -> bytes:
    """One spelling per value: sorted keys, no blanks, UTF-8, no NaN."""
    # Texts are spelled as the encoder does it, which takes longer to set up than to spell one.
    spelled = (f"{encode_basestring(name)}:{_spelled(value[name])}" for name in sorted(value))
    return f"{{{','.join(spelled)}}}".encode()


def _spelled(value: Scalar) -> str:
    return encode_basestring(value) if type(value) is str else _JSON.encode(value)


def _key(kind: str, fields: Mapping[str, Scalar]) -> str:
    body: dict[str, Scalar] = {**fields, "kind": kind, "v": KEY_VERSION}
    if len(body) != len(fields) + 2:
        raise ValueError("'kind' and 'v' are the key's own fields")
    return hashlib.sha256(canonical_json(body)).hexdigest()


def job_key(tenant: str, project: str, work_id: str, artifact_id: str, canonical_url: str) -> str:
    # As `_key` spells it, in whose order its fields are: one is made for each request of a plan.
    body = (
        f'{{"artifact_id":{encode_basestring(artifact_id)},"canonical_url":{encode_basestring(canonical_url)}'
        f',"kind":"artifact_job","project":{encode_basestring(project)},"tenant":{encode_basestring(tenant)}'
        f',"v":{KEY_VERSION},"work_id":{encode_basestring(work_id)}}}'
    )
    return hashlib.sha256(body.encode()).hexdigest()


def job_id(key: str) -> str:
    """The id that belongs to a job key: a caller can compute it, and no purge can change it."""
    return _uuid5(key)


def op_key(kind: str, job_id: str, **extras: Scalar) -> str:
    """The key of one stage's effect on one job.

    What depends on the network carries `run`; what depends on the content carries its sha256.
    """
    if "job_id" in extras or "op" in extras:
        raise ValueError("'job_id' and 'op' are the key's own fields")
    return _key("op", {**extras, "op": kind, "job_id": job_id})


def artifact_uuid(index_op_key: str) -> str:
    """The id of the record that an INDEX op makes, so that making it again makes the same."""
    return _uuid5(f"artifact:{index_op_key}")


def _uuid5(name: str) -> str:
    """`str(uuid.uuid5(_NAMESPACE, name))`, without an object for each of its steps."""
    text = hashlib.sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).hexdigest()
    # RFC 9562, section 5.5: the version, and the variant.
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
