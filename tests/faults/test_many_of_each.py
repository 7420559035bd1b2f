"""Several nodes and web processes at once: faults, and an upgrade that disturbs no action."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.faults.audit import Audit
from tests.faults.rounds import BACK_WITHIN_SECONDS, play, settle
from tests.faults.system import System

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Longer than a node may be silent.
STOPPED_SECONDS = 6.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("m"), cpus=300, nodes=3, webs=2)
    system.start()
    yield system
    system.stop()


@pytest.fixture(scope="module")
def audit(system: System) -> Audit:
    return Audit(system)


@pytest.mark.parametrize("name", ["web-2", "node-2"])
def test_one_of_several_is_killed(system: System, audit: Audit, name: str) -> None:
    load = play(system)
    system[name].kill()
    system[name].start()
    settle(system, audit, load)


def test_a_node_that_was_silent_goes_on_beside_the_others(system: System, audit: Audit) -> None:
    load = play(system)
    system["node-3"].signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)  # the fault itself, not a way to wait for something
    # The others serve meanwhile.
    assert system.wait_until_served() < BACK_WITHIN_SECONDS
    system["node-3"].signal(signal.SIGCONT)
    settle(system, audit, load)


def test_an_upgrade_of_every_part_in_turn_disturbs_no_action(system: System, audit: Audit) -> None:
    load = play(system, actions=8)
    standby, leader = system.standby(), system.leader()
    for part in (standby, leader, system["projector"], system["web"], system["web-2"]):
        part.end()
        part.start()
        assert system.wait_until_served() < BACK_WITHIN_SECONDS
    for node, name in (("n1", "node"), ("n2", "node-2"), ("n3", "node-3")):
        system.drain(node)
        system[name].end()
        system[name].start()
        system.resume(node)
    settle(system, audit, load)
    assert set(load.outcomes.values()) == {"completed"}
