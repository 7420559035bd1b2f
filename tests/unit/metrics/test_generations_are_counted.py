"""Generations are counted by fleet and outcome with their tokens, and workers of fleets are exposed as they are now."""

from __future__ import annotations

from contract.fleet_status import FleetStatus, FleetWorkerStatus
from domain.action import Outcome, Timing
from domain.decisions import Finish
from domain.events import ActionFinished, ActionSubmitted
from domain.fleets import FleetEngine, FleetWorker, PlacementName, TokenUsage
from domain.ids import ActionId
from tangram_web.live.frames import FrameFold
from tangram_web.metrics.exposition import families
from tangram_web.metrics.reading import SystemReading
from tangram_web.metrics.totals import Totals
from tests.builders import a_generation
from tests.unit.live.journal import Journal


def a_report(name: str, usage: TokenUsage | None, attempt: int) -> ActionFinished:
    return ActionFinished(
        action_id=ActionId(name), node="", outcome=Outcome.COMPLETED, usage=usage, attempt=attempt
    )


def an_end(name: str, outcome: Outcome) -> Finish:
    return Finish(
        action_id=ActionId(name), project="p", task="t", outcome=outcome, timing=Timing(0, 0, 1, 1)
    )


def counted() -> Totals:
    """Return the totals of two generations: one that was answered, and one that waited until it was cancelled."""
    journal = Journal()
    journal.write([ActionSubmitted(action=a_generation(name, "t1")) for name in "ab"], [])
    journal.write([a_report("a", TokenUsage(100, 50, 20), 0)], [an_end("a", Outcome.COMPLETED)])
    journal.write([a_report("a", TokenUsage(100, 50, 20), 0)], [])
    journal.write([], [an_end("b", Outcome.CANCELLED)])
    totals = Totals()
    fold = FrameFold(totals)
    for entry in journal.entries:
        fold.fold(entry)
    return totals


def test_generations_and_their_tokens_are_counted_once():
    totals = counted()

    assert totals.generations == {("m", "completed"): 1, ("m", "cancelled"): 1}
    assert totals.generation_tokens == {
        ("m", "prompt"): 100,
        ("m", "cached"): 20,
        ("m", "sampled"): 50,
    }


def test_workers_of_fleets_are_exposed():
    worker = FleetWorkerStatus(
        FleetWorker(number=1, name="w1", url="", slots=8, unhealthy="refused"), 3, 2
    )
    fleet = FleetStatus(
        "m", FleetEngine.VLLM, PlacementName.HEDGED, workers=[worker], unrouted={"no_worker": 4}, live=9
    )  # fmt: skip
    system = SystemReading("l", 1, 0.1, 0, {}, 0, [])
    found = {
        family.name: [(each.labels, each.value) for each in family.samples]
        for family in families(counted(), system, {}, {}, {}, [], [fleet])
    }

    labels = {"fleet": "m", "worker": "w1"}
    shown = {name: found[f"tangram_fleet_{name}"] for name in (
        "slots", "running_generations", "waiting_generations", "worker_healthy", "worker_drained",
    )}  # fmt: skip
    assert shown == {
        "slots": [(labels, 8)], "running_generations": [(labels, 3)],
        "waiting_generations": [(labels, 2)], "worker_healthy": [(labels, 0)],
        "worker_drained": [(labels, 0)],
    }  # fmt: skip
    assert found["tangram_fleet_unrouted_generations"] == [({"fleet": "m", "code": "no_worker"}, 4)]
    ends = {labels["outcome"]: value for labels, value in found["tangram_generations"]}
    assert (ends["completed"], ends["infra_failed"], ends["cancelled"]) == (1, 0, 1)
