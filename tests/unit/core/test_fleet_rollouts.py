"""Rollouts of a fleet: they open no pool of backends, and their generations end when they leave their worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.action import ActionState, Outcome
from domain.decisions import SetBackends
from domain.rollouts import RolloutState
from tests.builders import a_config, a_fleet, a_generation, only
from tests.unit.core.rollout_scenario import RolloutScenario, a_rollout, rollout_id


@pytest.fixture
def core() -> Iterator[RolloutScenario]:
    """A core with a worker of rollouts, and a fleet with one slot."""
    scenario = RolloutScenario(config=a_config(fleets={"m": a_fleet((1,))}))
    scenario.join_worker("w1")
    scenario.submit_rollouts(a_rollout(1, llm="fleet:m"))
    scenario.submit(
        a_generation("held", f"{rollout_id(1)}-run"),
        a_generation("waiting", f"{rollout_id(1)}-run"),
    )
    scenario.submit(a_generation("of another", "t"))
    yield scenario
    scenario.check()


def test_a_rollout_of_a_fleet_opens_no_pool_of_backends(core: RolloutScenario) -> None:
    assert core.rollout_state(1) is RolloutState.ASSIGNED
    assert only(SetBackends, core.decisions) == []
    assert core.machine.state.backends == {}


@pytest.mark.parametrize("how", ["lose_worker", "park"])
def test_generations_end_with_the_stay_at_a_worker_and_free_their_slots(
    core: RolloutScenario, how: str
) -> None:
    assert core.state("held") is ActionState.GRANTED
    assert core.state("of another") is ActionState.QUEUED

    if how == "park":
        core.park(1)
    else:
        core.lose_worker()

    assert core.outcomes == {"held": Outcome.CANCELLED, "waiting": Outcome.CANCELLED}
    assert core.state("of another") is ActionState.GRANTED
