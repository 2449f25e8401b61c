"""Where no qBittorrent is set nothing is scheduled or loaded, and what is set wrongly is said without its secrets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dlpipe import defaults
from dlpipe.core.errors import Misconfigured
from dlpipe.settings import load

SET = {"DLPIPE_TORRENTS_URL": "http://127.0.0.1:8080", "DLPIPE_TORRENTS_SAVE_PATH": "/srv/downloads"}


def test_the_round_is_scheduled_only_where_a_client_is_set() -> None:
    assert "sync_torrents" not in defaults.config(load({}).settings)["beat_schedule"]
    config = defaults.config(load({**SET, "DLPIPE_TORRENTS_EVERY_S": "20"}).settings)
    entry = config["beat_schedule"]["sync_torrents"]
    assert entry == {"task": "dlpipe.sync_torrents", "schedule": 20.0}
    queues = {task: config["task_routes"][f"dlpipe.{task}"]["queue"] for task in
              ("sync_torrents", "enqueue_download", "register_download")}  # fmt: skip
    assert queues == {"sync_torrents": "beat", "enqueue_download": "net", "register_download": "disk"}


def test_no_round_is_dropped_by_the_clock_of_the_worker_that_takes_it() -> None:
    """An expiry is a moment of the scheduler's clock: a worker a minute ahead would drop every round."""
    schedule = defaults.config(load(SET).settings)["beat_schedule"]
    assert set(schedule) == {"dispatch", "reconcile", "sync_torrents"}
    assert all("expires" not in entry.get("options", {}) for entry in schedule.values())


def test_the_interval_is_fifteen_seconds_unless_set() -> None:
    assert load(SET).settings.torrents.every_s == 15.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"DLPIPE_TORRENTS_URL": "http://admin:hunter2@127.0.0.1:8080"},
        {"DLPIPE_TORRENTS_SAVE_PATH": "hunter2/downloads"},
        {"DLPIPE_TORRENTS_SHARING": "hunter2"},
        {"DLPIPE_TORRENTS_BATCH": "0"},
    ],
)
def test_what_is_set_wrongly_is_refused_without_repeating_it(wrong: dict[str, str]) -> None:
    with pytest.raises(Misconfigured) as refused:
        load({**SET, **wrong})
    assert refused.value.code == "setting_invalid"
    assert "hunter2" not in str(refused.value)


def test_secrets_are_listed_but_not_shown() -> None:
    loaded = load({**SET, "DLPIPE_TORRENTS_PASSWORD": "hunter2", "DLPIPE_TORRENTS_API_KEY": "hunter3"})
    shown = {knob.name: knob.value for knob in loaded.knobs()}
    assert {shown["torrents.password"], shown["torrents.api_key"]} == {"(set, not shown)"}


def test_importing_the_tasks_loads_no_torrent_client() -> None:
    code = (
        "import sys; from dlpipe import start_download; assert callable(start_download);"
        "assert not {'qbittorrentapi', 'requests'} & set(sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
