"""Rollouts survive kill -9 of each part: all of them complete, and each tool runs once. Its long form is `benchmarks.rollout_faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rollout_faults import PARTS, a_system, kill
from benchmarks.rollouts.language_models import language_models
from tests.conformance.isolations import isolations
from tests.faults.rollout_audit import RolloutAudit
from tests.faults.rollout_load import RolloutLoad, declare_backends
from tests.tiers import by_tier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("bwrap" not in isolations(), reason="bubblewrap does not work here"),
]
IN_FLIGHT = by_tier(6, 8, 24)


def test_no_rollout_is_lost_and_no_tool_runs_twice(tmp_path: Path) -> None:
    with (
        language_models([1.0], slots=4 * IN_FLIGHT, token_seconds=0.005) as models,
        a_system(tmp_path, workers=1) as system,
    ):
        declare_backends(system, models.addresses, 4 * IN_FLIGHT)
        audit, load = RolloutAudit(system), RolloutLoad(IN_FLIGHT)
        load.start(system)
        load.wait_until_in_flight()
        for part in PARTS:
            system.wait_until_whole()
            kill(system, part)
        load.end_early()
        load.join()
        audit.check_rollouts(load)
    assert audit.checked["rollouts"] >= IN_FLIGHT
