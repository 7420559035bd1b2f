"""One worker hosts loop, projector and jobs: it is killed and stopped while many actions run.

The same rounds as of separate parts (`test_kills`); here loop and projector are lost at once, and there is no standby.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.faults.audit import Audit
from tests.faults.rounds import play, settle
from tests.faults.system import System
from tests.tiers import by_tier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STOPPED_SECONDS = 6.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("f"), together=True)
    system.start()
    yield system
    system.stop()


@pytest.mark.parametrize(
    "role", by_tier(["worker"], ["worker", "redis"], ["worker", "node", "web", "redis"])
)
def test_nothing_is_lost_when_a_part_is_killed(system: System, audit: Audit, role: str) -> None:
    load = play(system)
    system[role].kill()
    system[role].start()
    settle(system, audit, load)


def test_nothing_is_lost_when_the_worker_is_stopped_for_a_while(
    system: System, audit: Audit
) -> None:
    load = play(system)
    system["worker"].signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)  # the fault itself, not a way to wait for something
    system["worker"].signal(signal.SIGCONT)
    settle(system, audit, load)


def test_no_request_is_in_the_log_of_the_web_process(system: System) -> None:
    assert "/api/v1/" not in system["web"].log.read_text()
