"""The same faults on production parts: PostgreSQL, and a redis-server reached by TCP and password."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from tests.faults.audit import Audit
from tests.faults.rounds import play, settle
from tests.faults.system import System
from tests.postgres_server import PostgresServer, find_program
from tests.tiers import in_ci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: How long a part stands still: the fault itself, not a way to wait for something.
STOPPED_SECONDS = 6.0


class Stoppable(Protocol):
    """A part of the system, or the database beside it."""

    def kill(self) -> None: ...
    def start(self) -> None: ...
    def signal(self, number: signal.Signals) -> None: ...


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if find_program("initdb") is None:
        (pytest.fail if in_ci() else pytest.skip)("PostgreSQL is not installed")
    server = PostgresServer().create()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("s"), postgres=postgres)
    system.start()
    yield system
    system.stop()


@pytest.fixture(scope="module")
def audit(system: System) -> Audit:
    return Audit(system)


def the_part(system: System, name: str) -> Stoppable:
    if name == "leader":
        return system.leader()
    if name == "postgres":
        assert system.postgres is not None
        return system.postgres
    return system[name]


#: The standby uses neither of them: `test_kills` is enough.
PARTS = ["postgres", "redis", "leader", "node", "projector", "web"]


@pytest.mark.parametrize("name", PARTS)
def test_nothing_is_lost_when_a_production_part_is_killed(
    system: System, audit: Audit, name: str
) -> None:
    load = play(system)
    part = the_part(system, name)
    part.kill()
    part.start()
    settle(system, audit, load)


@pytest.mark.parametrize("name", PARTS)
def test_nothing_is_lost_when_a_production_part_is_stopped_for_a_while(
    system: System, audit: Audit, name: str
) -> None:
    load = play(system)
    part = the_part(system, name)
    part.signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    part.signal(signal.SIGCONT)
    settle(system, audit, load)
