"""A PostgreSQL ledger with millions of finished jobs, loaded past the planner, with all rows that a job leaves behind.

Some of its files, one after the other in the order in which reconcile walks, are really in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

FILES = 8_000
"""More than a round of reconcile reads again."""
FILE_BYTES = 10_240
BYTES_PER_JOB = 8_192
"""Of disk, with indexes and the log of the load; measured, and rounded up."""
_CHUNK = 200_000

_ID = "md5('job' || n)::uuid"
_ARTIFACT = "('00000000-0000-5000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
_SHA256 = (
    "CASE WHEN n BETWEEN {first} AND {last} THEN encode(sha256(lpad(n::text, {size}, '0')::bytea), 'hex') "
    "ELSE encode(sha256(n::text::bytea), 'hex') END"
)
_POINTER = "'local:default/default/' || left(sha, 2) || '/' || sha || '.pdf'"
_URL = "'https://h' || (n % 997) || '.example.org/papers/' || n || '.pdf'"
_AT = "now() - make_interval(days => 365) + make_interval(secs => n * 5.0)"
_ROWS = "(SELECT n, {sha} AS sha FROM generate_series({begin}, {end}) AS n) AS made"
_OPS = """(VALUES
 ('HEAD', '{{"accept_ranges":"bytes","content_length":10240,"content_type":"application/pdf",'
  || '"etag":"\\"6553f100-2800\\"","final_url_sha256":"' || sha || '","http_status":200,"v":1}}'),
 ('RESUME', '{{"decision":"fresh","range_start":0,"reason":"no_part","v":1}}'),
 ('STREAM', '{{"bytes_written":10240,"content_type":"application/pdf","elapsed_ms":4,"fsync_ms":1,'
  || '"resumed_from_bytes":0,"sha256":"' || sha || '","size":10240,"v":1}}'),
 ('FINALIZE', '{{"already_there":false,"pointer":"' || {pointer} || '","sha256":"' || sha || '","size":10240,"v":1}}'),
 ('INDEX', '{{"artifact_uuid":"' || {artifact} || '","pointer":"' || {pointer} || '","sha256":"' || sha || '","v":1}}'),
 ('DEDUPE', '{{"action":"download","saved_bytes":0,"v":1}}')
) AS op (kind, result)"""
_INSERTS = """
INSERT INTO jobs (job_id, tenant_id, project_id, job_type, status, progress, idempotency_key, created_at, updated_at,
    completed_at)
SELECT {id}, 'default', 'default', 'artifact_download', 'completed', 100, encode(sha256(('key' || n)::bytea), 'hex'),
    {at}, {at}, {at} FROM {rows};
INSERT INTO artifact_jobs (job_id, tenant_id, work_id, artifact_id, canonical_url, request_url, host, state, run, fence,
    ext, part)
SELECT {id}, 'default', 'work-' || n, 'main', {url}, {url}, 'h' || (n % 997) || '.example.org', 'DEDUPED', 1, 6, '.pdf',
    left(sha, 16) FROM {rows};
INSERT INTO artifact_ops (op_key, job_id, run, op_type, state, fence, started_at, finished_at, result_code, result_json)
SELECT encode(sha256((n || kind)::bytea), 'hex'), {id}, 1, kind, 'finished', 6, {at}, {at}, 'ok', result
    FROM {rows}, LATERAL {ops};
INSERT INTO artifacts (artifact_uuid, tenant_id, project_id, artifact_type, storage_backend, storage_pointer,
    content_type, byte_size, sha256, schema_version, created_at, created_by_job_id)
SELECT {artifact}, 'default', 'default', 'file', 'local', {pointer}, 'application/pdf', {size}, sha, 1, {at}, {id}
    FROM {rows};
INSERT INTO job_artifacts (job_id, role, position, artifact_uuid)
SELECT {id}, 'result', 0, {artifact} FROM {rows};
INSERT INTO hash_index (scope, sha256, pointer, size, job_id)
SELECT 'default', sha, {pointer}, {size}, {id} FROM {rows};
INSERT INTO url_index (scope, url_sha256, canonical_url, sha256, pointer, size, content_type, etag, seen_at)
SELECT 'default', encode(sha256(({url})::bytea), 'hex'), {url}, sha, {pointer}, {size}, 'application/pdf',
    '"6553f100-2800"', {at} FROM {rows};
INSERT INTO manifest (artifact_uuid, job_id, run, sha256, pointer, shard_prefix, byte_size, resume_decision,
    resume_reason, bytes_written, resumed_from_bytes, elapsed_ms, fsync_ms, avg_write_mibps, dedupe_action, created_at)
SELECT {artifact}, {id}, 1, sha, {pointer}, left(sha, 2), {size}, 'fresh', 'no_part', {size}, 0, 4, 1, 2.4, 'download',
    {at} FROM {rows}
""".split(";")


def first_file(count: int) -> int:
    """The number of the first job whose file is there: in the middle, where a walk is after some months."""
    return max(0, (count - FILES) // 2) + 1


def position(count: int) -> str:
    """What reconcile's walk remembers when it is about to come to those files."""
    return f"00000000-0000-5000-8000-{first_file(count) - 1:012x}"


def fill(url: str, root: Path, count: int) -> None:
    """So many finished jobs, and the files of those in the middle."""
    first = first_file(count)
    last = min(first + FILES - 1, count)
    spelled: dict[str, Any] = {"id": _ID, "artifact": _ARTIFACT, "url": _URL, "at": _AT, "size": FILE_BYTES}
    spelled |= {"pointer": _POINTER, "ops": _OPS.format(pointer=_POINTER, artifact=_ARTIFACT)}
    sha = _SHA256.format(first=first, last=last, size=FILE_BYTES)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # the keys hold by the way the rows are made
        with _without_indexes(connection):
            for begin in range(1, count + 1, _CHUNK):
                rows = _ROWS.format(sha=sha, begin=begin, end=min(begin + _CHUNK - 1, count))
                for insert in _INSERTS:
                    connection.execute(insert.format(rows=rows, **spelled).encode())
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")
        _read_indexes(connection)
    for number in range(first, last + 1):
        data = str(number).zfill(FILE_BYTES).encode()
        name = hashlib.sha256(data).hexdigest()
        path = root / "default" / "default" / name[:2] / f"{name}.pdf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o444)


@contextmanager
def _without_indexes(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """To make an index over all rows takes minutes, to put millions of rows into it one by one takes hours."""
    again: list[sql.Composed | sql.SQL] = []
    for table, name, definition in connection.execute(_KEYS).fetchall():
        named = sql.Identifier(table), sql.Identifier(name)
        connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(*named))
        again.append(sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} ").format(*named) + sql.SQL(definition))
    for name, definition in connection.execute(_INDEXES).fetchall():
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
        again.append(sql.SQL(definition))
    yield
    for statement in again:
        connection.execute(statement)


def _read_indexes(connection: psycopg.Connection[Any]) -> None:
    """Into the machine's memory, where they would be if this ledger had done all these jobs one by one: each job goes
    into every index, at any place, and nobody looks at the rows of years ago. The load has pushed them out."""
    for path, size in connection.execute(_INDEX_FILES).fetchall():
        for begin in range(0, size, _SEGMENT):
            file = path + (f".{begin // _SEGMENT}" if begin else "")
            for at in range(0, min(_SEGMENT, size - begin), _READ):
                connection.execute("SELECT length(pg_read_binary_file(%s, %s, %s, true))", (file, at, _READ))


_SEGMENT = 1 << 30
_READ = 16 << 20
_INDEX_FILES = (
    "SELECT pg_relation_filepath(oid), pg_relation_size(oid) FROM pg_class "
    "WHERE relkind = 'i' AND relnamespace = 'public'::regnamespace"
)
_KEYS = (
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint AS own "
    "WHERE contype IN ('p', 'u') AND connamespace = 'public'::regnamespace AND NOT EXISTS "
    "(SELECT FROM pg_constraint AS other WHERE other.contype = 'f' AND other.conindid = own.conindid)"
)
_INDEXES = (
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT IN "
    "(SELECT conindid::regclass::text FROM pg_constraint WHERE conindid <> 0)"
)
