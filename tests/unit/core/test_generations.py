"""Generations wait for the worker that placement gives them, and are held by the gateway that has their connection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
from msgspec.structs import replace

from domain.action import ActionState, Outcome
from domain.decisions import Abort, Grant, Renew, SetFleet
from domain.errors import InvariantViolation
from domain.events import ActionFinished, ActionStarted, LeasesRenewed
from domain.fleet_events import FleetWorkersChanged, TrajectoryPinned
from domain.fleets import (
    HOLD_SECONDS,
    FleetWorker,
    PlacementName,
    TokenUsage,
    TransferAdapter,
    WorkerFact,
)
from domain.ids import ActionId
from domain.inventory import ProjectConfig
from placement.facts import BatchArrangement, TrajectoryFacts, WorkerFacts
from placement.fleet import LlmFleet
from placement.policies.plain import PlainPolicy
from placement.policies.protocol import FleetView
from placement.profiles import ProfiledTimes
from placement.roofline import roofline
from scheduler.core.state import generations, snapshot
from scheduler.core.state.timers import Timers
from tests.builders import a_config, a_fleet, a_generation, granted, make_ledger, only
from tests.scenario import Scenario

MAKE_PLACEMENT = generations.make_placement


class ArrangesInTurn(PlainPolicy):
    """Gives the trajectories of a batch to the workers in turn; else least attained service, where the cache is."""

    arranges = True

    def arrange(
        self, batch: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts], fleet: FleetView
    ) -> BatchArrangement:
        turns = cycle(each.number for each in workers)
        return BatchArrangement({each.key: next(turns) for each in batch}, ())


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all fleets have a policy whose choices these tests can foresee."""
    times = ProfiledTimes(roofline("8b"))

    def make(spec: object) -> LlmFleet:
        return LlmFleet(ArrangesInTurn("autellix", "cache"), times)

    monkeypatch.setattr(generations, "make_placement", make)


def a_scenario(*slots: int, **fields: Any) -> Scenario:
    """Return a scenario with fleet ``m``, whose workers have ``slots``."""
    return Scenario(config=a_config(fleets={"m": a_fleet(slots or (1, 1), **fields)}))


def worker(scenario: Scenario, name: str) -> int:
    """Return the worker in the allocation of a granted generation."""
    (held,) = scenario.the_grant(name).allocations
    (number,) = held.units
    assert held.resource == f"fleet:m#{number}"
    return number


def start(scenario: Scenario, name: str) -> None:
    """The gateway sends the request to the worker."""
    attempt = scenario.live(name).attempt
    scenario.handle(ActionStarted(action_id=ActionId(name), node="", attempt=attempt))


def end(scenario: Scenario, name: str, outcome: Outcome = Outcome.COMPLETED, **fields: Any):
    """The gateway reports the end of a generation."""
    attempt = scenario.live(name).attempt
    fields.setdefault("usage", TokenUsage(100, 50, 0))
    return scenario.handle(
        ActionFinished(
            action_id=ActionId(name), node="", attempt=attempt, outcome=outcome, **fields
        )
    )


def judge(scenario: Scenario, name: str, **fact: Any):
    """Report a fact about a worker."""
    return scenario.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact(name, **fact),)))


def test_a_generation_is_granted_a_slot_of_the_worker_of_its_route():
    scenario = a_scenario(1, 1)
    scenario.submit(a_generation("a", "t1"), a_generation("b", "t2"), a_generation("c", "t3"))

    assert {worker(scenario, "a"), worker(scenario, "b")} == {1, 2}
    assert scenario.state("c") is ActionState.QUEUED
    grant = scenario.the_grant("a")
    assert (grant.node, grant.expires_at) == (None, scenario.now + HOLD_SECONDS)

    end(scenario, "a")
    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_the_next_generation_of_a_trajectory_waits_for_its_worker_alone():
    scenario = a_scenario(1, 1)
    scenario.submit(a_generation("a1", "a"), a_generation("b1", "b"))
    home = worker(scenario, "a1")
    end(scenario, "a1")
    scenario.submit(a_generation("c1", "c"))  # takes the free slot of a's worker
    end(scenario, "b1")

    scenario.submit(a_generation("a2", "a"))

    why = scenario.why("a2")
    assert (why.code, why.resource) == ("short_of", f"fleet:m#{home}")
    assert why.reason == f"waits for one of the 1 slots of worker w{home} of fleet m"
    assert scenario.free(f"fleet:m#{3 - home}") == 1
    end(scenario, "c1")
    assert worker(scenario, "a2") == home


def test_a_worker_serves_by_priority_then_rank_then_arrival():
    scenario = a_scenario(1)
    scenario.submit(a_generation("first", "first"))
    end(scenario, "first", usage=TokenUsage(100, 500, 0))
    scenario.submit(a_generation("running"))
    # `first` has sampled 500 tokens.
    scenario.submit(a_generation("long", "first"), a_generation("x"), a_generation("y"))
    scenario.submit(a_generation("urgent", priority=1))

    assert scenario.why("y").position == 2
    assert scenario.why("long").reason.endswith("behind 3, 2 of longer trajectories")
    served = []
    while scenario.machine.state.actions:
        (held,) = scenario.holding()
        served.append(held)
        end(scenario, held)
    assert served == ["running", "urgent", "x", "y", "long"]
    assert scenario.the_grant("long").rank == -500.0


def test_a_changed_priority_keeps_the_rank():
    scenario = a_scenario(1)
    scenario.submit(a_generation("first", "first"))
    end(scenario, "first", usage=TokenUsage(100, 500, 0))
    scenario.submit(a_generation("running"), a_generation("long", "first", task="other"))
    scenario.submit(a_generation("short"))
    order = scenario.live("long").order

    scenario.prioritise(3, "other")
    assert scenario.live("long").order == (-3, *order[1:])
    end(scenario, "running")
    assert scenario.holding() == {"long"}


def test_generations_of_a_drained_worker_are_routed_again_and_what_runs_continues():
    scenario = a_scenario(1, 1)
    scenario.submit(a_generation("a1", "a"), a_generation("b1", "b"))
    home = worker(scenario, "a1")
    scenario.submit(a_generation("a2", "a"), a_generation("a3", "a"))
    start(scenario, "a1")

    decisions = judge(scenario, f"w{home}", drained=True)

    (known,) = only(SetFleet, decisions)
    assert [each.name for each in known.workers if each.usable] == [f"w{3 - home}"]
    assert {scenario.why(name).resource for name in ("a2", "a3")} == {f"fleet:m#{3 - home}"}
    assert scenario.state("a1") is ActionState.RUNNING
    assert scenario.free(f"fleet:m#{home}") == -1
    end(scenario, "a1")
    end(scenario, "b1")
    assert worker(scenario, "a2") == 3 - home
    judge(scenario, f"w{home}", drained=False)
    assert scenario.free(f"fleet:m#{home}") == 1


def test_a_generation_without_a_worker_says_so_and_is_routed_when_there_is_one():
    scenario = a_scenario(1)
    judge(scenario, "w1", unhealthy="no answer")

    scenario.submit(a_generation("a", "t"), a_generation("b"))

    assert scenario.why("a").code == "no_worker"
    assert "no worker of fleet m gets generations now" in scenario.why("b").reason
    judge(scenario, "w1", unhealthy="")
    assert scenario.holding() == {"a"}
    scenario.cancel("b")
    assert scenario.outcomes == {"b": Outcome.CANCELLED}


def test_a_worker_that_refuses_a_request_gets_none_of_it_again_once_it_is_unhealthy():
    scenario = a_scenario(1, 1)
    scenario.submit(a_generation("a", "t"))
    first = worker(scenario, "a")
    judge(scenario, f"w{first}", unhealthy="refused")

    end(scenario, "a", Outcome.INFRA_FAILED, never_started=True, usage=None)

    assert worker(scenario, "a") == 3 - first
    assert scenario.the_grant("a").attempt == 2


@pytest.mark.parametrize("replay_safe", [False, True])
def test_a_generation_that_its_gateway_does_not_renew_ends_in_time(replay_safe: bool):
    scenario = a_scenario(1)
    scenario.submit(a_generation("a", "t", replay_safe=replay_safe))
    start(scenario, "a")
    scenario.advance(HOLD_SECONDS / 2)
    decisions = scenario.handle(LeasesRenewed(action_ids=(ActionId("a"),)))
    assert only(Renew, decisions) == []
    scenario.advance(HOLD_SECONDS - 1)
    assert scenario.is_live("a")

    decisions = scenario.advance(1)

    if replay_safe:
        assert granted(decisions) == ["a"]
    else:
        assert scenario.the_finish("a").outcome is Outcome.UNKNOWN
        assert "silent" in (scenario.the_finish("a").detail or "")
        assert scenario.free("fleet:m#1") == 1


def test_a_cancel_is_for_the_gateway_and_its_report_ends_the_generation():
    scenario = a_scenario(1)
    scenario.submit(a_generation("a", "t"), a_generation("b"))

    (abort,) = only(Abort, scenario.cancel("a"))
    assert (abort.node, abort.attempt) == ("", 1)
    end(scenario, "a", Outcome.CANCELLED, usage=None)

    assert scenario.outcomes == {"a": Outcome.CANCELLED}
    assert scenario.holding() == {"b"}


def test_reports_of_nodes_and_of_earlier_attempts_change_nothing():
    scenario = a_scenario(1)
    scenario.submit(a_generation("a", "t"))

    for node, attempt in (("n1", 1), ("", 2)):
        scenario.handle(
            ActionFinished(
                action_id=ActionId("a"), node=node, attempt=attempt, outcome=Outcome.COMPLETED
            )
        )
    assert scenario.holding() == {"a"}


def test_a_fleet_that_is_deleted_ends_what_waits_and_lets_the_rest_run():
    scenario = a_scenario(1)
    scenario.submit(a_generation("a"), a_generation("b"))

    decisions = scenario.configure(a_config(revision=1))

    assert only(SetFleet, decisions) == [SetFleet("m", ())]
    assert scenario.outcomes == {"b": Outcome.INFRA_FAILED}
    scenario.submit(a_generation("c"))
    assert "no fleet 'm'" in (scenario.the_finish("c").detail or "")
    end(scenario, "a", Outcome.INFRA_FAILED, never_started=True)
    assert scenario.outcomes["a"] is Outcome.INFRA_FAILED


def test_numbers_of_workers_are_never_used_again():
    scenario = a_scenario(2)

    def numbers() -> dict[str, int]:
        fleet = scenario.machine.state.generations.fleets["m"]
        return {each.name: each.number for each in fleet.workers}

    scenario.configure(a_config(fleets={"m": a_fleet((3, 1))}, revision=1))
    assert (numbers(), scenario.free("fleet:m#1")) == ({"w1": 1, "w2": 2}, 3)
    scenario.configure(a_config(revision=2))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    scenario.configure(a_config(fleets={"m": a_fleet((1,))}, revision=3))
    assert numbers() == {"w1": 3}


def test_workers_of_our_own_join_and_leave_beside_declared_ones():
    scenario = a_scenario(1)
    own = FleetWorker(name="own-1", url="http://n1:9000", slots=4, degree=2)

    scenario.handle(FleetWorkersChanged(fleet="m", joined=(own,)))
    assert scenario.free("fleet:m#2") == 4
    scenario.configure(a_config(fleets={"m": a_fleet(())}, revision=1))
    assert [each.name for each in scenario.machine.state.generations.fleets["m"].workers] == [
        "own-1"
    ]
    # One that the configuration declares is neither replaced nor removed by an event.
    scenario.configure(a_config(fleets={"m": a_fleet((1,))}, revision=2))
    scenario.handle(FleetWorkersChanged(fleet="m", removed=("w1", "own-1")))
    assert [each.name for each in scenario.machine.state.generations.fleets["m"].workers] == ["w1"]


def test_another_policy_routes_what_waits():
    scenario = a_scenario(1, 1)
    scenario.submit(a_generation("a"), a_generation("b"), a_generation("c", "t"))

    spec = a_fleet((1, 1), policy=PlacementName.PAPER)
    scenario.configure(a_config(fleets={"m": spec}, revision=1))

    assert scenario.state("c") is ActionState.QUEUED
    for name in ("a", "b", "c"):
        end(scenario, name)
    assert set(scenario.outcomes) == {"a", "b", "c"}


def test_a_pinned_trajectory_goes_to_its_worker():
    scenario = a_scenario(2, 2)
    scenario.submit(a_generation("a1", "a"))
    other = 3 - worker(scenario, "a1")
    end(scenario, "a1")

    key = scenario.key("a")
    scenario.handle(TrajectoryPinned(fleet="m", trajectory=key, worker=f"w{other}"))
    scenario.submit(a_generation("a2", "a"))

    assert worker(scenario, "a2") == other


def test_the_configuration_drains_a_worker_until_it_or_a_verb_says_otherwise():
    scenario = a_scenario(1, 1)

    def drained() -> list[bool]:
        return [each.drained for each in scenario.machine.state.generations.fleets["m"].workers]

    spec = a_fleet((1, 1))
    off = replace(spec, workers=(replace(spec.workers[0], drained=True), spec.workers[1]))
    scenario.configure(a_config(fleets={"m": off}, revision=1))
    assert (drained(), scenario.free("fleet:m#1")) == ([True, False], 0)
    scenario.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=False),)))
    scenario.configure(a_config(fleets={"m": replace(off, pool="other")}, revision=2))
    assert drained() == [False, False]
    scenario.handle(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=True),)))
    scenario.configure(a_config(fleets={"m": spec}, revision=3))
    assert drained() == [False, False]


def test_no_move_is_planned_between_workers_that_can_move_no_cache():
    scenario = a_scenario(1, 1)
    fleet = scenario.machine.state.generations.fleets["m"]
    assert fleet.moves_caches
    facts = tuple(WorkerFact(name, moves=TransferAdapter.NONE) for name in ("w1", "w2"))
    (known,) = only(SetFleet, scenario.handle(FleetWorkersChanged(fleet="m", facts=facts)))
    assert {each.moves for each in known.workers} == {TransferAdapter.NONE}
    assert not fleet.moves_caches


def test_a_trajectory_that_ends_is_forgotten_by_its_fleet():
    scenario = a_scenario(2)
    scenario.submit(a_generation("a", "t"))
    placement = scenario.machine.state.generations.fleets["m"].placement
    assert placement.why(scenario.key("t")) is not None
    end(scenario, "a")

    scenario.finish_trajectory("t")

    assert placement.why(scenario.key("t")) is None


def test_a_restored_machine_decides_what_the_original_does():
    scenario = a_scenario(1, 1)
    scenario.submit(*(a_generation(f"{t}1", t) for t in "abcde"), a_generation("x"))
    judge(scenario, "w1", drained=True)
    scenario.submit(a_generation("y"))
    held = sorted(scenario.holding())
    restored = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert snapshot.dump(restored) == snapshot.dump(scenario.machine)

    original, now = scenario.machine, scenario.now
    for step in (
        lambda: end(scenario, held[0]),
        lambda: judge(scenario, "w1", drained=False),
        lambda: scenario.submit(a_generation("a2", held[0][0])),
        lambda: scenario.advance(HOLD_SECONDS),
    ):
        scenario.machine, scenario.now = original, now
        decisions = step()
        scenario.machine, original_after = restored, scenario.now
        scenario.now = now
        assert step() == decisions
        now = original_after
    assert snapshot.dump(restored) == snapshot.dump(original)


def test_a_paused_task_holds_its_generations_back():
    scenario = a_scenario(1)
    scenario.pause()
    scenario.submit(a_generation("a", "t"))

    assert scenario.why("a").code == "task_paused"
    scenario.pause(paused=False)
    assert isinstance(scenario.the_grant("a"), Grant)


def test_members_of_a_batch_are_waited_for_and_arranged_together():
    scenario = a_scenario(9, 9)

    scenario.submit(a_generation("a", "a", batch="b", batch_size=3))
    scenario.submit(a_generation("b", "b", batch="b", batch_size=3), a_generation("x", "x"))
    why = scenario.why("a")
    assert (why.code, scenario.holding()) == ("batch_gathers", {"x"})
    assert "the other trajectories of its batch" in why.reason
    scenario.submit(a_generation("c", "c", batch="b", batch_size=3))

    assert [worker(scenario, name) for name in "abc"] == [1, 2, 1]


def test_a_batch_is_waited_for_half_a_second_at_most_also_after_a_restart():
    scenario = a_scenario(9, 9)
    scenario.submit(a_generation("a", "a", batch="b", batch_size=3))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    assert scenario.advance(0.4) == []
    assert granted(scenario.advance(0.1)) == ["a"]


def test_batches_of_two_projects_are_two():
    config = a_config(
        projects={name: ProjectConfig(name) for name in ("default", "other")},
        fleets={"m": a_fleet((9, 9))},
    )
    scenario = Scenario(config=config)
    scenario.submit(
        a_generation("a", "a", batch="b", batch_size=2),
        a_generation("b", "b", batch="b", batch_size=2, project="other"),
    )

    assert scenario.holding() == set()


def test_a_worker_of_a_degree_that_was_not_measured_does_not_join():
    measured = roofline("8b", degrees=(1, 2))
    scenario = Scenario(config=a_config(fleets={"m": a_fleet((1,), profile=measured)}))
    wide = FleetWorker(name="own-8", url="http://n1:9000", degree=8)

    assert scenario.handle(FleetWorkersChanged(fleet="m", joined=(wide,))) == []
    scenario.handle(FleetWorkersChanged(fleet="m", joined=(replace(wide, degree=2),)))
    assert scenario.free("fleet:m#2") == 64


@pytest.mark.parametrize("changed", [{"modelled": "32b"}, {"profile": roofline("14b")}])
def test_other_times_route_what_waits(changed: dict[str, Any]):
    scenario = a_scenario(1)
    scenario.submit(a_generation("a"), a_generation("b", "t"))
    before = scenario.machine.state.generations.fleets["m"].placement

    scenario.configure(a_config(fleets={"m": a_fleet((1,), **changed)}, revision=1))

    assert scenario.machine.state.generations.fleets["m"].placement is not before
    assert scenario.why("b").resource == "fleet:m#1"


def test_declared_times_are_those_that_placement_decides_from():
    for spec, profile in (
        (a_fleet(modelled="32b"), roofline("32b")),
        (a_fleet(profile=roofline("14b")), roofline("14b")),
        (a_fleet(), roofline("8b")),
    ):
        placement = MAKE_PLACEMENT(spec)
        expected = ProfiledTimes(profile).token_seconds(2, 16, 4096)
        assert placement.facts.times.token_seconds(2, 16, 4096) == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state.generations.unrouted.clear(), "unrouted are"),
        (lambda state: setattr(state, "timers", Timers()), "no timer is set"),
        (lambda state: state.generations.changed.add("m"), "were not settled"),
    ],
)
def test_damage_to_fleets_is_found(damage: Any, message: str):
    scenario = a_scenario(9)
    scenario.submit(a_generation("a", "a", batch="b", batch_size=3))
    damage(scenario.machine.state)

    with pytest.raises(InvariantViolation, match=message):
        scenario.check()
