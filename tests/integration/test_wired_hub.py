"""The hub as wiring builds it from settings: shared limits, circuits, the limits file, the cache and its place."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlpipe import settings as knobs
from dlpipe import wiring
from dlpipe.core.errors import Misconfigured, Postponed, StageFailure
from dlpipe.net import urls
from dlpipe.net.client import Hub
from tests.origin import Origin, answer
from tests.servers import Valkey

pytestmark = [
    pytest.mark.integration,
    pytest.mark.no_engines(),
]

FRESH = "Cache-Control: max-age=600"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as server:
        yield server


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path, valkey: Valkey) -> Iterator[Callable[..., Hub]]:
    made: list[Hub] = []

    def one(**env: str) -> Hub:
        base = {
            "DLPIPE_HOME": str(tmp_path),
            "DLPIPE_ALLOW_PRIVATE": "1",
            "DLPIPE_REDIS_URL": f"unix://{valkey.socket}?db=0",
        }
        chosen = knobs.load({**base, **env}).settings
        made.append(wiring._hub(chosen, wiring.net_policy(chosen)))
        return made[-1]

    yield one
    for hub in made:
        hub.close()


Make = Callable[..., Hub]


def test_two_of_them_share_a_rate_and_the_file_gives_a_host_its_own(origin: Origin, make: Make, tmp_path: Path) -> None:
    url = urls.address(origin.on("/f", answer(200, b"abc")))
    limits = tmp_path / "limits.toml"
    limits.write_text('[hosts."127.0.0.1"]\nrate_per_s = 0.01\n')
    env = {"DLPIPE_NET_LIMITS_FILE": str(limits)}
    make(**env).send("GET", url, tenant="default").close()
    with pytest.raises(Postponed) as caught:
        make(**env).send("GET", url, tenant="default")
    assert caught.value.code == "host_busy"
    make().send("GET", urls.address(url.root.replace("127.0.0.1", "localhost") + "f"), tenant="default").close()


def test_two_of_them_share_slots(origin: Origin, make: Make) -> None:
    url = urls.address(origin.on("/f", answer(200, b"abc")))
    env = {"DLPIPE_NET_SLOTS_PER_HOST": "1", "DLPIPE_NET_MAX_WAIT_S": "0"}
    held = make(**env).send("GET", url, tenant="default")
    with pytest.raises(Postponed):
        make(**env).send("GET", url, tenant="default")
    held.close()
    make(**env).send("GET", url, tenant="default").close()


def test_two_of_them_share_a_circuit(origin: Origin, make: Make) -> None:
    url = urls.address(origin.on("/f", answer(500)))
    env = {"DLPIPE_NET_BREAKER_FAILURES": "2", "DLPIPE_NET_RETRIES": "0"}
    for _ in range(2):
        with pytest.raises(Exception, match="http_5xx"):
            make(**env).send("GET", url, tenant="default")
    with pytest.raises(Postponed) as caught:
        make(**env).send("GET", url, tenant="default")
    assert caught.value.code == "host_circuit_open"


def test_a_url_that_is_always_busy_keeps_no_other_of_its_origin_waiting(origin: Origin, make: Make) -> None:
    """Row 52, with no Retry-After: neither the limiter nor the breaker holds the origin up."""
    busy, other = (urls.address(origin.on(path, answer(code, b"abc"))) for path, code in (("/busy", 503), ("/f", 200)))
    env = {"DLPIPE_NET_BREAKER_FAILURES": "2", "DLPIPE_NET_MAX_WAIT_S": "1"}
    for _ in range(2):
        with pytest.raises(StageFailure):
            make(**env).send("GET", busy, tenant="default")
    with pytest.raises(Postponed) as caught:
        make(**env).send("GET", busy, tenant="default")
    assert caught.value.code == "retry_after"
    assert len(origin.of("/busy")) > 2
    make(**env | {"DLPIPE_NET_MAX_WAIT_S": "0"}).send("GET", other, tenant="default").close()


@pytest.mark.parametrize(("cache", "asked"), [("1", 1), ("0", 2)])
def test_the_cache_is_in_the_data_directory_and_for_the_owner_alone(
    origin: Origin, make: Make, tmp_path: Path, cache: str, asked: int
) -> None:
    url = urls.address(origin.on("/f", answer(200, b"", FRESH)))
    for _ in range(2):
        make(DLPIPE_NET_CACHE=cache).send("HEAD", url, metadata=True, tenant="default").close()
    assert len(origin.asked) == asked
    file = tmp_path / "cache" / "http.db"
    assert file.exists() is (cache == "1")
    if cache == "1":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_limits_file_that_is_not_there_is_said_at_the_start(make: Make, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as caught:
        make(DLPIPE_NET_LIMITS_FILE=str(tmp_path / "none.toml"))
    assert caught.value.code == "limits_invalid"


def test_without_redis_it_works_all_the_same(origin: Origin, make: Make, valkey: Valkey) -> None:
    valkey.kill()
    hub = make()
    url = urls.address(origin.on("/f", answer(200, b"abc")))
    for _ in range(3):
        reply = hub.send("GET", url, tenant="default")
        assert b"".join(reply.chunks()) == b"abc"
        reply.close()
