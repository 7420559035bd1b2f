"""Every part is killed, and stopped for a while, while many actions run (see `rounds.IN_FLIGHT`).

After each round the test counts by itself: what was accepted has ended exactly once, nothing ran
twice, capacity held at every journal entry, and service was back soon after the restart.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.audit import Audit
from tests.faults.process import Part
from tests.faults.rounds import play, settle
from tests.faults.system import System

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Longer than a leader's lease and than a node may be silent.
STOPPED_SECONDS = 6.0


def the_part(system: System, role: str) -> Part:
    if role == "leader":
        return system.leader()
    if role == "standby":
        return system.standby()
    return system[role]


@pytest.mark.parametrize("role", ["leader", "standby", "node", "projector", "web", "redis"])
def test_nothing_is_lost_when_a_part_is_killed(system: System, audit: Audit, role: str) -> None:
    load = play(system)
    part = the_part(system, role)
    part.kill()
    part.start()
    settle(system, audit, load)


@pytest.mark.parametrize("role", ["leader", "standby", "node", "projector", "web", "redis"])
def test_nothing_is_lost_when_a_part_is_stopped_for_a_while(
    system: System, audit: Audit, role: str
) -> None:
    load = play(system)
    part = the_part(system, role)
    part.signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)  # the fault itself, not a way to wait for something
    part.signal(signal.SIGCONT)
    settle(system, audit, load)
