"""Staging folders of single nodes, beside each other on one disk or on disks of their own (OPS-4, HEAL-4)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dlpipe.store import LocalStaging

URL = "https://example.com/a.bin"
OTHER = "https://example.com/b.bin"
JOB = "7a0d37b5-0000-5000-8000-000000000001"


def fill(staging: LocalStaging, url: str = URL, tenant: str = "default") -> None:
    with staging.claim(tenant, url, JOB, 1) as part:
        part.write(b"bytes")


def paths(staging: LocalStaging, after: str = "", limit: int = 99) -> list[str]:
    return [one.path for one in staging.walk(after, limit)]


def test_each_node_has_parts_of_its_own(tmp_path: Path) -> None:
    for node in ("a", "b"):
        fill(LocalStaging(tmp_path, node=node))
    assert sorted(str(path.relative_to(tmp_path).parent) for path in tmp_path.rglob("*.part")) == [
        ".staging/@a/default",
        ".staging/@b/default",
    ]


def test_it_looks_after_its_own_and_after_what_is_nobodys_in_particular(tmp_path: Path) -> None:
    for node in (None, "a", "b"):
        fill(LocalStaging(tmp_path, node=node))
    slug = paths(LocalStaging(tmp_path))[0].partition("/")[2]
    assert paths(LocalStaging(tmp_path)) == [f"default/{slug}"]
    assert paths(LocalStaging(tmp_path, node="a")) == [f"default/{slug}", f"@a/default/{slug}"]
    LocalStaging(tmp_path, node="a").identity()
    assert paths(LocalStaging(tmp_path, node="a")) == [f"default/{slug}", f"@a/default/{slug}"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_walk_goes_on_where_the_page_before_ended(tmp_path: Path, limit: int) -> None:
    staging = LocalStaging(tmp_path, node="m")
    for one in (staging, LocalStaging(tmp_path)):
        for tenant in ("0", "default", "z"):
            for url in (URL, OTHER):
                fill(one, url, tenant)
    walked: list[str] = []
    while page := paths(staging, walked[-1] if walked else "", limit):
        walked += page
    assert walked == paths(staging)
    assert len(walked) == len(set(walked)) == 12


def test_what_it_removes_is_its_own(tmp_path: Path) -> None:
    mine, other = LocalStaging(tmp_path, node="a"), LocalStaging(tmp_path, node="b")
    for staging in (mine, other):
        fill(staging)
    (staged,) = mine.walk("", 9)
    assert mine.discard(staged, 0.0)
    assert paths(mine) == []
    assert len(paths(other)) == 1


def test_a_folder_keeps_its_id_and_has_another_one_than_others(tmp_path: Path) -> None:
    staging = LocalStaging(tmp_path, node="a")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(staging.identity())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*found, LocalStaging(tmp_path, node="a").identity()} == {found[0]}
    assert len(found[0]) == 32
    others = [LocalStaging(tmp_path, node="b"), LocalStaging(tmp_path / "elsewhere", node="a")]
    assert found[0] not in {other.identity() for other in others}
    assert sorted(os.listdir(tmp_path / ".staging" / "@a")) == [".id"]


def test_room_is_that_of_the_mount_or_of_the_nodes_own_disk(tmp_path: Path) -> None:
    shared = {LocalStaging(tmp_path, node=node).room("default", URL).volume for node in ("a", "b", None)}
    assert len(shared) == 1
    apart = {LocalStaging(tmp_path, node=node, own_disk=True).room("default", URL).volume for node in ("a", "b")}
    assert len(apart) == 2
