"""Which engines the integration part runs on: a ledger, a broker and a store.

The three options decide for a whole run, as in `pytest tests/integration --ledger postgresql --broker rabbitmq`. Left
to themselves, tests run on what an installation has that nobody set up; those marked `everywhere` run a second time,
on what production has. A test takes an engine by asking for a fixture that stands for it (`TAKEN_BY`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import pytest

from tests.objectserver import ObjectServer
from tests.shelf import Folder, InBucket, Shelf

if TYPE_CHECKING:
    from tests.rabbitmq import RabbitMQ

DIMENSIONS = ("ledger", "broker", "store")
OFFERED = {"ledger": ("sqlite", "postgresql"), "broker": ("redis", "rabbitmq"), "store": ("local", "s3")}
TAKEN_BY = {
    "ledger_url": "ledger",
    "ledger_settings": "ledger",
    "database_url": "ledger",
    "empty_url": "ledger",
    "filled": "ledger",
    "broker_settings": "broker",
    "shelf": "store",
}
_BOTH_LEDGERS = ("database_url", "empty_url", "filled")
"""Fixtures that give a test one ledger after the other."""


@dataclass(frozen=True)
class Choice:
    ledger: str = "sqlite"
    broker: str = "redis"
    store: str = "local"

    def __str__(self) -> str:
        return "-".join(astuple(self))


ORDINARY = Choice()
PRODUCTION = Choice("postgresql", "rabbitmq", "s3")


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("engines", "what the integration tests run on")
    for name, offered in OFFERED.items():
        group.addoption(f"--{name}", choices=offered, help=f"the {name} of every integration test that takes one")
    group.addoption("--taking", choices=DIMENSIONS, help="only the integration tests that take the one of the run")
    group.addoption("--engines-report", metavar="FILE", help="write what came of it as JSON")


def chosen(config: pytest.Config) -> Choice | None:
    """What the options say; None when they say nothing."""
    said = {one.name: config.getoption(f"--{one.name}") for one in fields(Choice)}
    given = {name: value for name, value in said.items() if value is not None}
    return Choice(**given) if given else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let what is marked `everywhere` run on the engines of production too, unless a run has engines of its own."""
    wanted = metafunc.definition.get_closest_marker("everywhere") is not None
    if wanted and "choice" in metafunc.fixturenames and chosen(metafunc.config) is None:
        # Together, so that one process alone starts a RabbitMQ for them.
        production = pytest.param(PRODUCTION, id=str(PRODUCTION), marks=pytest.mark.xdist_group("production"))
        both = [pytest.param(ORDINARY, id=pytest.HIDDEN_PARAM), production]
        metafunc.parametrize("choice", both, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs on one ledger after the other has one turn, where the run is about one of them."""
    wish = config.getoption("--ledger")
    gone = [item for item in items if wish and _turns(item) - {wish}]
    if gone:
        items[:] = [item for item in items if item not in set(gone)]
        config.hook.pytest_deselected(items=gone)


def _turns(item: pytest.Item) -> set[object]:
    callspec = getattr(item, "callspec", None)
    return {callspec.params[name] for name in _BOTH_LEDGERS if name in callspec.params} if callspec else set()


# ── fixtures ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def choice(request: pytest.FixtureRequest) -> Choice:
    made: Choice = getattr(request, "param", None) or chosen(request.config) or ORDINARY
    return made


@pytest.fixture
def ledger_url(choice: Choice, request: pytest.FixtureRequest) -> str:
    """A migrated ledger with nothing in it, on the engine of the run."""
    url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[choice.ledger])
    return url


@pytest.fixture
def ledger_settings(choice: Choice, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The same for workers. SQLite is what they have when nobody says anything, so they make it themselves."""
    return {} if choice.ledger == "sqlite" else {"DLPIPE_DATABASE_URL": request.getfixturevalue("postgres_url")}


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """One for the session, or for each worker of xdist, as it takes seconds to start. Not for tests that restart it."""
    from tests.rabbitmq import RabbitMQ

    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def broker_settings(choice: Choice, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Where messages go, for workers; with Redis, where leases are too."""
    if choice.broker == "redis":
        return {}
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    return {"DLPIPE_BROKER_URL": server.new_url()}


@pytest.fixture
def shelf(choice: Choice, request: pytest.FixtureRequest) -> Shelf:
    if choice.store == "local":
        return Folder()
    server: ObjectServer = request.getfixturevalue("object_server")
    return InBucket(server)


@pytest.fixture
def engine_settings(
    ledger_settings: Mapping[str, str], broker_settings: Mapping[str, str], shelf: Shelf
) -> dict[str, str]:
    """All that workers are told about the engines of the run."""
    return {**ledger_settings, **broker_settings, **shelf.settings}
