"""One round of a fault test: a load in flight, then (after the fault) service again, and a count."""

from __future__ import annotations

from typing import Final

from tests.faults.audit import Audit
from tests.faults.load import Load
from tests.faults.system import System
from tests.tiers import by_tier

#: Actions between acceptance and end when the fault happens.
IN_FLIGHT: Final = by_tier(50, 50, 200)
#: The promise of 5 s is measured by `benchmarks/faults.py`, on a machine of its own.
BACK_WITHIN_SECONDS: Final = 180.0


def play(system: System, *, actions: int = 2) -> Load:
    """Start a round and return in the middle of it."""
    load = Load(trajectories=IN_FLIGHT + 20, actions=actions)
    load.start(system)
    load.wait_until_in_flight(IN_FLIGHT)
    return load


def settle(system: System, audit: Audit, load: Load) -> None:
    """See that service is back, let the round end, and count."""
    assert system.wait_until_served() < BACK_WITHIN_SECONDS
    load.join()
    assert not load.failures
    audit.check(load)
