"""DBOS with the same six steps and the same effects. Runs in the peers' environment, by its path.

Lines in and out as with the other peers: {"urls": [...]} → {"seconds": …}. Arguments: the database's URL, the folder of
files, the name of this executor. Steps with an effect in the database are transactions of DBOS's data source, which
record the step together with its effect.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, SQLAlchemyDatasource

TABLES = """
CREATE TABLE IF NOT EXISTS six_artifacts (artifact_uuid VARCHAR(36) PRIMARY KEY, url TEXT NOT NULL,
    pointer TEXT NOT NULL, sha256 VARCHAR(64) NOT NULL, size BIGINT NOT NULL, created_at VARCHAR(40) NOT NULL);
CREATE INDEX IF NOT EXISTS six_artifacts_sha256 ON six_artifacts (sha256);
CREATE TABLE IF NOT EXISTS six_hashes (sha256 VARCHAR(64) PRIMARY KEY, pointer TEXT NOT NULL,
    artifact_uuid VARCHAR(36) NOT NULL);
CREATE TABLE IF NOT EXISTS six_urls (url_sha256 VARCHAR(64) PRIMARY KEY, url TEXT NOT NULL,
    sha256 VARCHAR(64) NOT NULL, pointer TEXT NOT NULL, etag TEXT);
CREATE TABLE IF NOT EXISTS six_manifest (artifact_uuid VARCHAR(36) PRIMARY KEY, url TEXT NOT NULL,
    sha256 VARCHAR(64) NOT NULL, size BIGINT NOT NULL, dedupe_action VARCHAR(16))
""".split(";")


def define(url: str, folder: Path) -> Any:
    """The workflow, on that database and that folder."""
    parts, store = folder / "parts", folder / "store"
    parts.mkdir(parents=True, exist_ok=True)
    store.mkdir(parents=True, exist_ok=True)
    client = httpx.Client(limits=httpx.Limits(max_connections=64, max_keepalive_connections=64))
    source = SQLAlchemyDatasource.create(url)

    @DBOS.step()
    def head(link: str) -> dict[str, Any]:
        answer = client.head(link)
        answer.raise_for_status()
        return {"size": int(answer.headers["Content-Length"]), "etag": answer.headers.get("ETag")}

    @DBOS.step()
    def resume_decide(part: str) -> int:
        found = Path(part)
        return found.stat().st_size if found.exists() else 0

    @DBOS.step()
    def stream(link: str, part: str) -> dict[str, Any]:
        digest, size = hashlib.sha256(), 0
        with client.stream("GET", link) as answer, open(part, "wb") as file:
            answer.raise_for_status()
            for piece in answer.iter_raw():
                digest.update(piece)
                size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return {"sha256": digest.hexdigest(), "size": size}

    @DBOS.step()
    def finalize(part: str, sha256: str) -> str:
        shard = store / sha256[:2]
        shard.mkdir(exist_ok=True)
        final = shard / f"{sha256}.bin"
        if os.path.exists(part):
            os.chmod(part, 0o444)
            os.link(part, final)
            os.unlink(part)
        _fsync_folder(shard)
        _fsync_folder(parts)
        return str(final)

    @source.transaction()
    def index(link: str, sha256: str, pointer: str, size: int, etag: str | None) -> str:
        made = str(uuid.uuid4())
        values = {"id": made, "url": link, "key": _key(link), "sha": sha256, "at": pointer, "size": size, "etag": etag}
        session = source.sql_session()
        for statement in _INDEX:
            session.execute(statement, values)
        return made

    @source.transaction()
    def dedupe(artifact: str, sha256: str) -> str:
        session = source.sql_session()
        first = session.scalar(sa.text("SELECT artifact_uuid FROM six_hashes WHERE sha256 = :sha"), {"sha": sha256})
        action = "download" if first == artifact else "hardlink"
        values = {"id": artifact, "action": action}
        session.execute(sa.text("UPDATE six_manifest SET dedupe_action = :action WHERE artifact_uuid = :id"), values)
        return action

    @DBOS.workflow()
    def six(link: str) -> str:
        part = str(parts / _key(link)[:16])
        found = head(link)
        resume_decide(part)
        came = stream(link, part)
        pointer = finalize(part, came["sha256"])
        artifact = index(link, came["sha256"], pointer, came["size"], found["etag"])
        action: str = dedupe(artifact, came["sha256"])
        return action

    return six


_INDEX = [
    sa.text("INSERT INTO six_artifacts VALUES (:id, :url, :at, :sha, :size, CURRENT_TIMESTAMP)"),
    sa.text("INSERT INTO six_hashes VALUES (:sha, :at, :id) ON CONFLICT DO NOTHING"),
    sa.text("INSERT INTO six_urls VALUES (:key, :url, :sha, :at, :etag) ON CONFLICT DO NOTHING"),
    sa.text("INSERT INTO six_manifest VALUES (:id, :url, :sha, :size, NULL)"),
]


def _key(link: str) -> str:
    return hashlib.sha256(link.encode()).hexdigest()


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_tables(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
    engine.dispose()


def main(url: str, folder: str, name: str, threads: str) -> None:
    config: DBOSConfig = {
        "name": "six", "system_database_url": url, "log_level": "ERROR", "executor_id": name,
        "max_executor_threads": int(threads),
    }  # fmt: skip
    make_tables(url)
    DBOS(config=config)
    six = define(url, Path(folder))
    DBOS.launch()
    print("{}", flush=True)
    for line in sys.stdin:
        links = json.loads(line)["urls"]
        began = time.monotonic()
        handles = [DBOS.start_workflow(six, link) for link in links]
        ends = [handle.get_result() for handle in handles]
        print(json.dumps({"seconds": time.monotonic() - began, "ended": len(ends)}), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:5])
