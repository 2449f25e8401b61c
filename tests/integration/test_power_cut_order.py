"""The order that a power cut must find: bytes before their name, the name before the ledger says so.

Read off the system calls of a process that fetches a file, with a ledger on SQLite (FINAL-1, FINAL-2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import systemcalls
from tests.fleet import REPOSITORY
from tests.systemcalls import Call

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("the system calls of SQLite and a folder are traced", "ledger", "store"),
    pytest.mark.no_engines("broker"),
]

_PROGRAM = """
import os, sys
from pathlib import Path
from dlpipe.core import crash
from dlpipe.db import SqlDatabase
from tests.fakes.source import FakeSource, Page
from tests.world import World

ledger, root, marks = sys.argv[1:]
body = b"some bytes" * 300_000
urls = {"http://files.example/one.bin": Page(body), "http://files.example/two.bin": Page(body),
        "http://files.example/three.bin": Page(body[1:])}
world = World(SqlDatabase("sqlite:///" + ledger), Path(root), source=FakeSource(urls))
marks = os.open(marks, os.O_WRONLY | os.O_CREAT, 0o600)
crash.arm(lambda name: os.write(marks, (name + "\\n").encode()))
world.fetch("http://files.example/one.bin")                        # a new file
world.fetch("http://files.example/one.bin", project_id="second")   # a known URL: a further name
world.fetch("http://files.example/two.bin", project_id="third")    # the same bytes from elsewhere: unified
"""
_AFTER_A_CRASH = """
from dlpipe.pipeline.reconcile import reconcile

class Died(BaseException): pass

def die(name):
    os.write(marks, (name + "\\n").encode())
    if name == "finalize.after_link":
        crash.arm(lambda name: os.write(marks, (name + "\\n").encode()))
        raise Died

crash.arm(die)
job = world.plan("http://files.example/three.bin", project_id="fourth")
try:
    world.drive()
except Died:
    pass
world.expire(job)
reconcile(world.deps)
world.drive()
assert world.state(job) == "DEDUPED", world.state(job)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut")


@pytest.fixture(scope="module")
def calls(places: Path, sqlite_template: Path) -> list[Call]:
    systemcalls.need()
    (places / "ledger.db").write_bytes(sqlite_template.read_bytes())
    arguments = [str(places / "ledger.db"), str(places / "new" / "store"), str(places / "marks")]
    return systemcalls.traced(_PROGRAM + _AFTER_A_CRASH, arguments, places / "trace", REPOSITORY)


@pytest.fixture
def store(places: Path) -> str:
    return str(places / "new" / "store")


def find(calls: Sequence[Call], suits: Callable[[Call], bool]) -> list[Call]:
    return [call for call in calls if suits(call)]


def names_given(calls: Sequence[Call], store: str) -> list[Call]:
    """What put a name into the store, beside the store's own: its mark, and what is being received."""
    makers = ("link", "linkat", "rename", "renameat", "renameat2")
    inside, own = f"{store}/", f"{store}/."
    return find(calls, lambda c: c.name in makers and c.target.startswith(inside) and not c.target.startswith(own))


def is_sync(call: Call, path: str) -> bool:
    return call.name in ("fsync", "fdatasync") and call.handle == path


def is_write(call: Call, path: str) -> bool:
    return call.name in ("write", "pwrite64", "pwritev", "ftruncate") and call.handle == path


def ledger_writes(calls: Sequence[Call]) -> list[Call]:
    return find(calls, lambda c: is_write(c, c.handle) and c.handle.endswith("ledger.db-wal"))


def mark(calls: Sequence[Call], name: str, time: int = 1) -> Call:
    return find(calls, lambda c: c.handle.endswith("/marks") and f'"{name}\\n"' in c.arguments)[time - 1]


def test_three_files_got_their_names(calls: list[Call], store: str) -> None:
    given = names_given(calls, store)
    assert [call.target.removeprefix(store).split("/")[2] for call in given] == [
        "default", "second", "third", "third", "fourth",
    ]  # fmt: skip


def test_the_bytes_are_durable_before_they_are_recorded_as_streamed(calls: list[Call]) -> None:
    for time in (1, 2):
        before = [c for c in calls if c.ended < mark(calls, "stream.recording", time).began]
        written = [c for c in before if c.handle.endswith(".part") and is_write(c, c.handle)][-1]
        synced = [c for c in before if is_sync(c, written.handle) and written.ended < c.began]
        assert synced, "written, and recorded without an fsync between"


def test_the_bytes_are_durable_and_read_only_before_their_name(calls: list[Call], store: str) -> None:
    published = find(names_given(calls, store), lambda c: "/proc/self/fd/" in c.arguments)
    assert len(published) == 3
    for link in published:
        before = [c for c in calls if c.ended < link.began and c.handle.endswith(".part")]
        last_write = max(c.ended for c in before if is_write(c, c.handle))
        last_mode = max(c.ended for c in before if c.name == "fchmod" and "0444" in c.arguments)
        last_sync = max(c.began for c in before if is_sync(c, c.handle))
        assert last_write < last_sync
        assert last_mode < last_sync


def test_nothing_is_published_over_another_file(calls: list[Call], store: str) -> None:
    """A rename takes the place of a file; only sharing an equal file's bytes may do that."""
    renames = find(names_given(calls, store), lambda c: c.name.startswith("rename"))
    assert [call.target.removeprefix(store).split("/")[2] for call in renames] == ["third"]
    unified = renames[0]
    assert mark(calls, "dedupe.after_link").ended < unified.began


def test_each_name_is_durable_before_the_ledger_says_anything(calls: list[Call], store: str) -> None:
    commits = ledger_writes(calls)
    *given_by_the_living, given_by_the_dead = names_given(calls, store)
    for given in (*given_by_the_living, given_by_the_dead):
        folder = given.target.rpartition("/")[0]
        said = next(c for c in commits if c.began > given.ended)
        if given is given_by_the_dead:  # whoever comes next finds the name, and vouches for it
            last = mark(calls, "finalize.recording", 3)
            said = next(c for c in commits if c.began > last.ended)
        synced = [c for c in calls if is_sync(c, folder) and given.ended < c.began and c.ended < said.began]
        assert synced, f"{given.name} in {folder}: the ledger was written before the folder was durable"


def test_each_new_folder_is_durable_before_the_ledger_says_anything(
    calls: list[Call], places: Path, store: str
) -> None:
    commits = ledger_writes(calls)
    made = find(calls, lambda c: c.name.startswith("mkdir") and c.target.startswith(str(places / "new")))
    assert {str(places / "new"), store, f"{store}/default", f"{store}/default/default"} <= {c.target for c in made}
    for one in made:
        above = one.target.rpartition("/")[0]
        said = next(c for c in commits if c.began > one.ended)
        synced = [c for c in calls if is_sync(c, above) and one.ended < c.began and c.ended < said.began]
        assert synced, f"the name of {one.target} may be lost"


def test_what_the_ledger_says_is_durable_before_the_next_stage(calls: list[Call]) -> None:
    for stage in ("stream", "finalize", "index"):
        recording, recorded = mark(calls, f"{stage}.recording"), mark(calls, f"{stage}.recorded")
        written = [c for c in ledger_writes(calls) if recording.ended < c.began and c.ended < recorded.began]
        assert written, f"{stage} was not written down"
        assert [c for c in calls if is_sync(c, written[-1].handle) and written[-1].ended < c.began < recorded.began]
