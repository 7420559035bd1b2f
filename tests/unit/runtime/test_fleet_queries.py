"""Fleets as the loop answers queries about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from contract.fleet_status import FleetPlanStatus, FleetsStatus, FleetStatus
from domain.action import Outcome
from domain.codec import decode_command, encode
from domain.events import ActionFinished, ActionStarted, TrajectoryFinished
from domain.fleet_events import FleetsQueried, FleetWorkersChanged, TrajectoryPredicted
from domain.fleets import PlacementName, TokenUsage, WorkerFact
from domain.ids import ActionId, TrajectoryKey
from scheduler.runtime.loop.fleet_queries import fleets_status
from tests.builders import a_config, a_fleet, a_generation
from tests.scenario import Scenario


def a_scenario(*slots: int, spec: Mapping[str, Any] | None = None, **fleets: Any) -> Scenario:
    return Scenario(config=a_config(fleets={"m": a_fleet(slots, **(spec or {})), **fleets}))


def asked(core: Scenario, **fields: Any) -> FleetsStatus:
    query = FleetsQueried(request_id="r1", reply_to="web", **fields)
    assert decode_command(encode(query)) == query
    return fleets_status(core.machine.state, query)


def one(core: Scenario, **fields: Any) -> FleetStatus:
    (found,) = asked(core, fleet="m", **fields).fleets
    return found


def plan_of(core: Scenario, **fields: Any) -> FleetPlanStatus:
    found = one(core, plan=True, **fields).plan
    assert found is not None
    return found


def end(core: Scenario, name: str) -> None:
    core.handle(
        ActionFinished(
            action_id=ActionId(name), node="", outcome=Outcome.COMPLETED,
            usage=TokenUsage(100, 50, 20),
        )
    )  # fmt: skip


def key_of(core: Scenario, name: str) -> TrajectoryKey:
    key = core.live(name).action.trajectory_key
    assert key is not None
    return key


def predict(core: Scenario, key: TrajectoryKey, tokens: float) -> None:
    core.handle(TrajectoryPredicted(fleet="m", trajectory=key, tokens=tokens, source="history"))


def test_workers_say_what_runs_and_what_waits_for_them():
    core = a_scenario(1, 2, other=a_fleet((4,)))
    core.submit(*(a_generation(f"g{number}", f"t{number}") for number in range(4)))

    found = one(core)

    assert sum(each.running for each in found.workers) == 3
    assert sum(each.waiting for each in found.workers) == 1
    assert [each.facts.slots for each in found.workers] == [1, 2]
    assert (found.live, found.trajectories, found.unrouted) == (4, [], {})
    assert [each.name for each in asked(core).fleets] == ["m", "other"]
    assert asked(core, fleet="unknown").fleets == []


def test_generations_without_a_worker_are_counted_by_their_reason():
    core = a_scenario(1)
    core.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", unhealthy="refused"),)))
    core.submit(a_generation("a", "t1"), a_generation("b", "t2"))

    found = one(core, limit=10)

    assert found.unrouted == {"no_worker": 2}
    assert [each.facts.unhealthy for each in found.workers] == ["refused"]
    assert [each.state for each in found.trajectories] == ["waits", "waits"]


def test_trajectories_are_shown_longest_first_and_of_seen_projects_alone():
    core = a_scenario(1)
    core.submit(
        a_generation("a", "t1"), a_generation("b", "t2"), a_generation("c", "t3", project="q")
    )
    keys = {name: key_of(core, name) for name in "abc"}
    core.handle(ActionStarted(action_id=ActionId("a"), node="", attempt=1))
    end(core, "a")
    predict(core, keys["a"], 900.0)

    found = one(core, limit=10)

    assert [(each.key, each.state) for each in found.trajectories] == [
        (keys["a"], "in_tool"), (keys["b"], "runs"), (keys["c"], "queued"),
    ]  # fmt: skip
    longest = found.trajectories[0]
    assert (longest.predicted_tokens, longest.sampled_tokens, longest.steps) == (950.0, 50, 1)
    assert (one(core, limit=1).seen, len(one(core, limit=1).trajectories)) == (3, 1)
    theirs = one(core, limit=10, projects=("q",), plan=True, trajectory=keys["a"])
    assert [each.key for each in theirs.trajectories] == [keys["c"]]
    assert (theirs.seen, theirs.route, theirs.live) == (1, None, 3)


def test_a_trajectory_says_why_it_is_on_its_worker():
    core = a_scenario(1, 1)
    core.submit(a_generation("a", "t1"))
    key = key_of(core, "a")
    core.handle(ActionStarted(action_id=ActionId("a"), node="", attempt=1))

    route = one(core, trajectory=key).route

    assert route is not None
    assert (route.code, route.worker, route.waits) == ("least_loaded", 1, False)
    assert route.sentence == "The worker has the least to do."
    assert [each.state for each in one(core, limit=1).trajectories] == ["runs"]
    assert one(core, trajectory="p/unknown").route is None


def test_refused_predictions_are_counted_by_cause():
    core = a_scenario(1)
    core.submit(a_generation("a", "t1"))
    key = key_of(core, "a")
    predict(core, key, float("nan"))
    predict(core, key, 10.0)  # a generation was routed already

    assert one(core).refused == {"unusable": 1, "late": 1}


def test_a_dry_run_estimates_when_all_would_have_ended_and_changes_nothing():
    core = a_scenario(4, 4, spec={"modelled": "8b", "policy": PlacementName.PAPER})
    core.submit(*(a_generation(f"g{number}", f"t{number}") for number in range(4)))
    keys = [key_of(core, f"g{number}") for number in range(4)]
    for number, key in enumerate(keys):
        core.handle(ActionStarted(action_id=ActionId(f"g{number}"), node="", attempt=1))
        end(core, f"g{number}")
        # Round robin has put the two long ones together.
        predict(core, key, 20_000.0 if number % 2 else 100.0)
    before = core.machine.state.generations.fleets["m"].placement.remember()

    plan, theirs = plan_of(core), plan_of(core, projects=("q",))

    assert (plan.code, plan.trajectories) == ("arranged", 4)
    assert plan.changes == len(plan.placements) > 0
    assert plan.kept_seconds is not None
    assert plan.planned_seconds is not None
    assert 0 < plan.planned_seconds <= plan.kept_seconds
    assert all(each.worker != each.planned for each in plan.placements)
    assert (theirs.changes, theirs.placements) == (plan.changes, [])
    assert len(plan_of(core, plan_limit=1).placements) == 1
    assert core.machine.state.generations.fleets["m"].placement.remember() == before


def test_a_dry_run_says_why_nothing_is_arranged():
    core = a_scenario(4, 4)

    assert plan_of(core).code == "no_trajectories"
    core.submit(a_generation("a", "t1"))
    assert plan_of(core).code == "unpredicted"
    core.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=True),)))
    assert plan_of(core).code == "one_worker"
    core.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w2", drained=True),)))
    assert plan_of(core).code == "no_worker"


def test_finished_trajectories_show_what_was_predicted_and_what_was_true():
    core = a_scenario(1)
    core.submit(a_generation("a", "t1"))
    key = key_of(core, "a")
    core.handle(ActionStarted(action_id=ActionId("a"), node="", attempt=1))
    end(core, "a")
    predict(core, key, 100.0)
    core.submit(a_generation("b", "t1"))
    core.handle(ActionStarted(action_id=ActionId("b"), node="", attempt=1))
    end(core, "b")
    project, _, name = key.partition("/")
    core.handle(TrajectoryFinished(project=project, trajectory=name))

    ((predicted, true),) = one(core, limit=1).finished
    assert predicted == pytest.approx(2 * true)  # 50 tokens were sampled
    assert one(core).finished == []
