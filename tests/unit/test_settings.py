"""Settings mean the same in every folder, an empty one is none, and a wrong one is a sentence without its value."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection
from sqlalchemy import make_url

from dlpipe import cli, wiring
from dlpipe.core.errors import Misconfigured
from dlpipe.embedded.stack import Stack
from dlpipe.lease.connect import connect
from dlpipe.settings import bucket_options, load, secret_files


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Settings of this process, read anew."""
    monkeypatch.setenv("DLPIPE_HOME", str(tmp_path / "data"))
    cached = (wiring.loaded, wiring.database, wiring.prepare)
    for each in cached:
        each.cache_clear()
    yield monkeypatch
    for each in cached:
        each.cache_clear()


# ── relative paths ────────────────────────────────────────────────────────────────────────────────


def test_what_is_relative_is_made_absolute_and_handed_on(tmp_path: Path) -> None:
    env = {
        "DLPIPE_HOME": "data",
        "DLPIPE_STORE_ROOT": "files",
        "DLPIPE_DATABASE_URL": "sqlite:///x.db?timeout=3",
        "DLPIPE_NET_LIMITS_FILE": "limits.toml",
        "DLPIPE_TORRENTS_CA_FILE": "ca.pem",
        "DLPIPE_TORRENTS_LOCAL_PATH": "torrents",
    }
    found = load(env)
    chosen = found.settings
    assert (chosen.home, chosen.store.root) == (tmp_path / "data", tmp_path / "files")
    assert chosen.database_uri == f"sqlite:///{tmp_path}/x.db?timeout=3"
    assert chosen.net.limits_file == tmp_path / "limits.toml"
    assert (chosen.torrents.ca_file, chosen.torrents.local_path) == (tmp_path / "ca.pem", tmp_path / "torrents")
    assert found.handed_on.keys() == env.keys()
    assert load({**env, **found.handed_on}).settings == chosen


def test_what_is_relative_in_the_file_is_handed_on_with_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dlpipe.toml").write_text('log_level = "ERROR"\n[store]\nroot = "files"\n')
    found = load({})
    assert found.file == tmp_path / "dlpipe.toml"
    assert found.handed_on == {
        "DLPIPE_CONFIG": str(tmp_path / "dlpipe.toml"),
        "DLPIPE_HOME": str(tmp_path / "dlpipe-data"),
        "DLPIPE_STORE_ROOT": str(tmp_path / "files"),
    }
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(found.handed_on).settings == found.settings


def test_a_relative_config_is_found_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('log_level = "ERROR"\n')
    assert load({"DLPIPE_CONFIG": "my.toml"}).handed_on["DLPIPE_CONFIG"] == str(tmp_path / "my.toml")


@pytest.mark.parametrize("url", ["sqlite:////srv/x.db", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true"])
def test_an_address_that_is_no_relative_path_stays_as_it_is(url: str) -> None:
    found = load({"DLPIPE_DATABASE_URL": url})
    assert found.settings.database_uri == url
    assert "DLPIPE_DATABASE_URL" not in found.handed_on


# ── secrets from files ────────────────────────────────────────────────────────────────────────────

SECRET_URL = "postgresql+psycopg://u:hunter2@h/d"


def test_every_secret_can_come_from_a_file_and_nothing_else_can() -> None:
    assert secret_files() == {
        f"DLPIPE_{name}_FILE": f"DLPIPE_{name}"
        for name in (
            "DATABASE_URL",
            "REDIS_URL",
            "BROKER_URL",
            "REDIS_SENTINEL_PASSWORD",
            "TORRENTS_PASSWORD",
            "TORRENTS_API_KEY",
        )
    }


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_from_a_file_is_listed_with_the_file_and_without_its_value(tmp_path: Path, end: str) -> None:
    (tmp_path / "url").write_bytes(f"{SECRET_URL}{end}".encode())
    found = load({"DLPIPE_DATABASE_URL_FILE": "url"})
    assert found.settings.database_uri == SECRET_URL
    knob = next(one for one in found.knobs() if one.name == "database_url")
    assert knob.value == "(set, not shown)"
    assert knob.source == f"file {tmp_path}/url (environment DLPIPE_DATABASE_URL_FILE)"
    assert "hunter2" not in repr(found)
    assert found.handed_on == {
        "DLPIPE_HOME": str(tmp_path / "dlpipe-data"), "DLPIPE_DATABASE_URL_FILE": str(tmp_path / "url"),
    }  # fmt: skip


def test_a_secret_from_a_file_overrules_the_toml_file_and_an_empty_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "dlpipe.toml").write_text('database_url = "sqlite:////srv/toml.db"\n')
    (tmp_path / "url").write_text("sqlite:////srv/secret.db")
    assert load({"DLPIPE_DATABASE_URL_FILE": "url"}).settings.database_uri == "sqlite:////srv/secret.db"
    assert load({"DLPIPE_DATABASE_URL_FILE": ""}).settings.database_uri == "sqlite:////srv/toml.db"


def test_a_relative_database_from_a_file_is_handed_on_once(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("sqlite:///x.db")
    env = {"DLPIPE_DATABASE_URL_FILE": "url"}
    found = load(env)
    assert found.handed_on["DLPIPE_DATABASE_URL"] == f"sqlite:///{tmp_path}/x.db"
    assert load({**env, **found.handed_on}).settings == found.settings


@pytest.mark.parametrize(
    "held", [None, b"", b"\n", b"hunter2\nhunter3\n", b"hunter2\xff", b"hunter2" * 10_000, b"hunter2"],
    ids=["missing", "empty", "blank line", "two lines", "no text", "too long", "no address"],
)  # fmt: skip
def test_a_file_that_holds_no_secret_is_refused_without_repeating_it(tmp_path: Path, held: bytes | None) -> None:
    if held is not None:
        (tmp_path / "url").write_bytes(held)
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_DATABASE_URL_FILE": "url"})
    assert refused.value.code == "setting_invalid"
    assert "DLPIPE_DATABASE_URL_FILE" in str(refused.value)
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize("held", [b"", b"\n", b"one\ntwo\n", b"x" * 65_537], ids=["empty", "blank", "two", "too long"])
def test_a_password_is_one_line_although_any_text_could_be_one(tmp_path: Path, held: bytes) -> None:
    (tmp_path / "password").write_bytes(held)
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_TORRENTS_PASSWORD_FILE": "password"})
    assert "does not hold one line" in str(refused.value)


def test_a_secret_and_a_file_for_it_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(SECRET_URL)
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_DATABASE_URL": SECRET_URL, "DLPIPE_DATABASE_URL_FILE": "url"})
    assert "both set" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_misspelt_file_is_unknown() -> None:
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_DATABASE_URL_FILES": "url"})
    assert (refused.value.code, "DLPIPE_DATABASE_URL_FILE?" in refused.value.hint) == ("setting_unknown", True)


# ── empty and wrong values ────────────────────────────────────────────────────────────────────────


def test_an_empty_value_is_none(tmp_path: Path) -> None:
    names = ("HOME", "CONFIG", "DATABASE_URL", "REDIS_URL", "BROKER_URL", "STORE_ROOT", "NODE", "NET_PORTS")
    found = load({f"DLPIPE_{name}": "" for name in names})
    assert found.settings == load({}).settings
    assert found.settings.home == tmp_path / "dlpipe-data"
    assert found.sources == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "hunter2"),
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@h:port/d"),
        ("DATABASE_URL", "postgresql+hunter2://h/d"),
        ("REDIS_URL", "hunter2"),
        ("REDIS_URL", "redis://:hunter2@h:port/0"),
        ("REDIS_URL", "http://hunter2/"),
        ("BROKER_URL", "redis://:hunter2@h:port/0"),
        ("BROKER_URL", "redis://[hunter2"),
        ("HOME", "~hunter2-is-nobody/x"),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(name: str, value: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load({f"DLPIPE_{name}": value})
    assert refused.value.code == "setting_invalid"
    assert f"DLPIPE_{name}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", ["hunter2", "hunter2://h/"])
def test_a_broker_that_celery_does_not_know_is_refused(value: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_BROKER_URL": value, "DLPIPE_REDIS_URL": "redis://h/0"})
    assert refused.value.code == "setting_invalid"
    assert "hunter2" not in str(refused.value)


def test_addresses_of_all_kinds_are_taken() -> None:
    load({"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:p@h/d", "DLPIPE_BROKER_URL": "rediss://:p@h:6380/1"})
    load({"DLPIPE_REDIS_URL": "unix:///run/redis.sock?db=1"})
    load({"DLPIPE_BROKER_URL": "amqp://u:p@h//", "DLPIPE_REDIS_URL": "redis://h"})

    load({"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:p%25@[::1]:5432/d?sslmode=require"})
    load({"DLPIPE_DATABASE_URL": "postgresql+psycopg://u@/d?host=a:1&host=b:2&target_session_attrs=read-write"})
    load({"DLPIPE_REDIS_URL": "rediss://[::1]:6380/15?ssl_cert_reqs=none"})


def test_an_address_that_the_libraries_take_as_it_is_written_is_taken() -> None:
    """A bare % of a password, and a space in the path of a socket."""
    password = load({"DLPIPE_REDIS_URL": "redis://:pa%ss@h"}).settings
    assert connect(password.redis_uri).get_connection_kwargs()["password"] == "pa%ss"
    assert Connection(password.broker_uri).password == "pa%ss"
    socket = load({"DLPIPE_REDIS_URL": "unix:///home/my name/redis.sock"}).settings
    assert connect(socket.redis_uri).get_connection_kwargs()["path"] == "/home/my name/redis.sock"
    assert vars(Connection(socket.broker_uri))["hostname"] == "socket:///home/my name/redis.sock"
    database = load(
        {"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:50%@h/db", "DLPIPE_REDIS_URL": "redis://h"}
    ).settings
    assert make_url(database.database_uri).password == "50%"


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@h/d?foo=bar"),
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@h:port/d"),
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@h:99999/d"),
        ("DATABASE_URL", "postgresql+psycopg://u:hunter2@[::1/d"),
        ("REDIS_URL", "rediss://:hunter2@h/notanumber"),
        ("REDIS_URL", "redis://:hunter2@h/0?foo=bar"),
        ("REDIS_URL", "redis://:hunter2@h/0?protocol=9"),
        ("REDIS_URL", "redis://:hunter2@h/0?socket_timeout=x"),
        ("REDIS_URL", "http://:hunter2@h/0"),
        ("BROKER_URL", "rediss://:hunter2@h/notanumber"),
        ("BROKER_URL", "amqp://u:hunter2@h/v?connect_timeout=x"),
        ("BROKER_URL", "amqp://u:hunter2@h/v?heartbeat=x"),
        ("BROKER_URL", "nosuch://u:hunter2@h/v"),
    ],
)
def test_an_address_that_no_library_could_use_is_refused_at_start(setting: str, url: str) -> None:
    redis = {"DLPIPE_REDIS_URL": "redis://h/0"} if setting == "BROKER_URL" else {}
    with pytest.raises(Misconfigured) as refused:
        load({f"DLPIPE_{setting}": url, **redis})
    assert (refused.value.code, setting.lower() in refused.value.message) == ("setting_invalid", True)
    assert "hunter2" not in f"{refused.value.message} {refused.value.hint}"


def test_a_missing_driver_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_DATABASE_URL": "postgresql+psycopg://u:hunter2@h/d"})
    assert refused.value.code == "driver_missing"
    assert refused.value.hint.startswith("pip install 'dlpipe[postgres]'")
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_no_text_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "dlpipe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Misconfigured) as refused:
        load({})
    assert refused.value.code == "config_unreadable"


# ── what is made of them ──────────────────────────────────────────────────────────────────────────


def test_a_home_that_cannot_be_made_is_a_sentence(wired: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wired.setenv("DLPIPE_HOME", str(tmp_path / "file" / "data"))
    for make in (wiring.database, wiring.prepare, lambda: wiring.stack(print)):
        with pytest.raises(Misconfigured) as refused:
            make()
        assert (refused.value.code, bool(refused.value.hint)) == ("home_unusable", True)


def test_downloads_have_workers_of_their_own_which_finish_them_and_all_else_has_a_helper(
    wired: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wired.setenv("DLPIPE_WORKER_THREADS", "7")
    wired.setenv("DLPIPE_STORE_ROOT", "files")
    made = wiring.stack(print)
    assert isinstance(made, Stack)
    argv = {each.service.name: list(each.service.argv) for each in made._services}
    assert list(argv) == ["worker1", "worker2", "helper", "beat"]
    for name, wanted in {
        "worker1": ["7", "-Q", "net,disk"],
        "worker2": ["7", "-Q", "net,disk"],
        "helper": ["2", "-X", "net"],
    }.items():
        at = argv[name].index("-c") + 1
        assert argv[name][at : at + 3] == wanted
    assert made._services[0]._env["DLPIPE_STORE_ROOT"] == str(tmp_path / "files")


def test_each_worker_of_the_stack_has_a_page_of_its_own(wired: pytest.MonkeyPatch) -> None:
    wired.setenv("DLPIPE_METRICS_PORT", "9464")
    made = wiring.stack(print)
    assert isinstance(made, Stack)
    ports = {each.service.name: each._env["DLPIPE_METRICS_PORT"] for each in made._services}
    assert ports == {"worker1": "9464", "worker2": "9465", "helper": "9466", "beat": "9464"}


@pytest.mark.parametrize("listen", ["localhost", "everywhere", "127.0.0.1:9464"])
def test_metrics_listen_at_an_address(listen: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load({"DLPIPE_METRICS_LISTEN": listen})
    assert refused.value.code == "setting_invalid"
    assert "an IP address" in refused.value.message


def test_nothing_is_counted_where_no_page_is_set(wired: pytest.MonkeyPatch) -> None:
    wiring.count_here()
    assert wiring._counting == []
    wiring.show_metrics(dict)


def test_an_error_of_the_system_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/srv/x")

    monkeypatch.setattr(cli.dlpipe, "main", refuse)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 1
    assert "error: Permission denied (/srv/x) [system_error]" in capsys.readouterr().err


# ── a bucket ──────────────────────────────────────────────────────────────────────────────────────

BUCKET = {"DLPIPE_STORE_URL": "s3://papers/some/prefix"}


@pytest.mark.parametrize(
    "env",
    [
        {"DLPIPE_STORE_URL": "https://s3.example/papers"},
        {"DLPIPE_STORE_URL": "s3://"},
        {"DLPIPE_STORE_URL": "s3://hunter2:hunter2@papers/x"},
        {"DLPIPE_STORE_URL": "s3://papers/x?secret=hunter2"},
        {"DLPIPE_STORE_URL": "s3://papers/../x y"},
        {**BUCKET, "DLPIPE_STORE_ENDPOINT": "https://hunter2@s3.example"},
        {**BUCKET, "DLPIPE_STORE_ENDPOINT": "http://s3.example"},
        {**BUCKET, "DLPIPE_STORE_CREDENTIALS_FILE": "/nowhere/hunter2"},
    ],
)
def test_a_bucket_that_cannot_be_is_a_sentence_without_its_value(env: dict[str, str]) -> None:
    with pytest.raises(Misconfigured) as refused:
        load(env)
    assert refused.value.code == "setting_invalid"
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_an_endpoint_without_encryption_is_used_only_when_that_is_said() -> None:
    env = {**BUCKET, "DLPIPE_STORE_ENDPOINT": "http://s3.example", "DLPIPE_STORE_ALLOW_HTTP": "1"}
    assert load(env).settings.store.endpoint == "http://s3.example"


def test_credentials_are_read_from_their_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('access_key_id = "AKIA"\nsecret_access_key = "hunter2"\n')
    env = {**BUCKET, "DLPIPE_STORE_CREDENTIALS_FILE": "keys.toml", "DLPIPE_STORE_REGION": "eu-central-1"}
    loaded = load(env)
    assert bucket_options(loaded.settings) == {
        "access_key_id": "AKIA",
        "secret_access_key": "hunter2",
        "region": "eu-central-1",
        "checksum_algorithm": "sha256",
    }
    assert loaded.handed_on["DLPIPE_STORE_CREDENTIALS_FILE"] == str(file)
    assert "hunter2" not in repr(loaded.knobs())
    assert "hunter2" not in repr(loaded)
    file.write_text("secret_access_key = hunter2\n")
    with pytest.raises(Misconfigured) as refused:
        load(env)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("url", "proof", "reads_back"),
    [("s3://b", "auto", False), ("s3://b", "read", True), ("gs://bu", "auto", True), ("az://co", "checksum", False)],
)
def test_bytes_are_read_back_where_no_server_is_known_to_check_them(url: str, proof: str, reads_back: bool) -> None:
    chosen = load({"DLPIPE_STORE_URL": f"{url}ucket", "DLPIPE_STORE_PROOF": proof}).settings.store
    assert (chosen.reads_back, chosen.space) == (reads_back, url[:2])


@pytest.mark.parametrize(
    ("env", "hold_s"),
    [
        ({}, 172_800.0),
        ({"DLPIPE_STREAM_DEADLINE_S": "259200"}, 518_400.0),
        ({"DLPIPE_STREAM_DEADLINE_S": "3600", "DLPIPE_LEASE_HOLD_MAX_S": "3601"}, 3_601.0),
    ],
)
def test_hold_of_a_lease_is_longer_than_the_longest_download(env: dict[str, str], hold_s: float) -> None:
    assert load(env).settings.hold_max_s == hold_s


def test_hold_of_a_lease_that_a_download_would_outlast_is_refused() -> None:
    with pytest.raises(Misconfigured, match="hold_max_s must be more than"):
        load({"DLPIPE_STREAM_DEADLINE_S": "3600", "DLPIPE_LEASE_HOLD_MAX_S": "3600"})
