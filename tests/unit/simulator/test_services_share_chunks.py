"""Simulated: calls to more GPU services than there are chunks."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from msgspec import structs

from domain.errors import InvalidRequest
from domain.resources import MILLI
from scheduler.core.residency.services import ServiceResidency
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.llm_trace import make_requests
from simulator.overheads import NONE
from simulator.result import Result
from simulator.workloads.program import Act, Program
from simulator.workloads.services import Arrival, Arrivals, ServiceCalls, models, most_called, waits

NAMES = tuple(f"m{number}" for number in range(10))
COLD_START = 1.5
CALL = 0.5


def simulated(
    arrivals: list[Arrival],
    restore_seconds: float,
    policy: str = "minimum",
    gpus: int = 3,
    seats: int = 1,
) -> Result:
    served = models(NAMES, restore_seconds, 80 * GIB)
    for name, model in served.items():
        served[name] = replace(model, max_concurrency=seats)
    cluster = Cluster(nodes=1, cores=4, gpus=gpus, models=served)
    calls = ServiceCalls(arrivals, CALL)
    return run(Scene(calls, cluster, NONE), policy).result


def arrivals(seed: int, load: float = 0.65) -> list[Arrival]:
    return Arrivals(make_requests(2000, seed), NAMES, load=load, seed=seed).all()


def test_a_call_waits_for_its_restore_and_finds_its_service_there_the_next_time():
    result = simulated([Arrival(1.0, "m0"), Arrival(4.0, "m0"), Arrival(7.0, "m1")], 2.0, gpus=1)

    assert result.restores == 2
    assert result.whole.act.mean == pytest.approx((2.5 + 0.5 + 2.5) / 3)
    assert result.whole.overhead.most == pytest.approx(2.0)
    assert result.granted["gpu"] == pytest.approx(5.5 / 9.5)


def test_calls_that_share_a_chunk_begin_when_its_service_is_there():
    """Restored in 2 s for the first; the second comes meanwhile, the third finds no seat."""
    calls = [Arrival(1.0, "m0"), Arrival(2.0, "m0"), Arrival(2.1, "m0")]
    result = simulated(calls, 2.0, gpus=1, seats=2)

    assert result.restores == 1
    assert result.whole.act.most == pytest.approx(2.5)
    assert result.whole.act.mean == pytest.approx((2.5 + 1.5 + 1.9) / 3)
    assert result.granted["gpu"] == pytest.approx(3.0 / 4.0), "the chunk counts once"


def test_arrivals_are_a_function_of_their_seed():
    assert arrivals(1) == arrivals(1) != arrivals(2)
    assert 0.5 < len(arrivals(1)) / (0.65 * 3 / CALL * 40) < 2


def test_less_load_than_asked_for_is_not_made_of_nothing():
    with pytest.raises(InvalidRequest):
        Arrivals(make_requests(1, 0), NAMES)
    with pytest.raises(InvalidRequest):
        Arrivals(make_requests(10, 0), NAMES[:2])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_restores_from_host_memory_cost_little_beside_a_static_placement(seed: int):
    """The static placement refuses calls of seven services; here none is refused."""
    calls = arrivals(seed)
    static = mean(waits(most_called(calls, 3), CALL))

    result = simulated(calls, restore_seconds=CALL / 10)

    assert result.outcomes == {"completed": len(calls)}
    assert result.whole.act.mean <= 1.4 * static


@pytest.mark.cpu_seconds(0.6)
@pytest.mark.parametrize("load", [0.5, 0.65, 0.8])
def test_turns_are_never_worse_than_order_of_arrival(load: float):
    calls = arrivals(4, load)

    turns, paper = (simulated(calls, COLD_START * CALL, name) for name in ("minimum", "paper"))

    assert turns.whole.act.mean < paper.whole.act.mean
    assert turns.restores < paper.restores


class Searching(ServiceCalls):
    """Each call takes a place at an API as well."""

    def _play(self, number: int) -> Program:
        for step in super()._play(number):
            if isinstance(step, Act):
                cost = {**step.action.cost, "api:search": (MILLI,)}
                step = Act(structs.replace(step.action, cost=cost), step.work)
            yield step


def searching(calls: list[Arrival], restore_seconds: float, gpus: int, places: int) -> Result:
    served = models(NAMES, restore_seconds, 80 * GIB)
    apis = {"api:search": places}
    cluster = Cluster(nodes=1, cores=4, gpus=gpus, models=served, apis=apis)
    return run(Scene(Searching(calls, CALL), cluster, NONE), "minimum").result


def test_a_restore_happens_while_its_call_waits_for_an_api():
    """The first has the place from 1 to 3.5 s; the second is restored from 1.5 to 3.5 s."""
    result = searching([Arrival(1.0, "m0"), Arrival(1.5, "m1")], 2.0, gpus=2, places=1)

    assert (result.restores, result.restores_ahead, result.restores_met) == (1, 1, 1)
    assert result.whole.act.mean == pytest.approx((2.5 + 2.5) / 2)


def test_a_restore_that_began_ahead_is_waited_for_to_its_end():
    """Restored from 3 s on; the place is free at 3.5 s."""
    result = searching([Arrival(1.0, "m0"), Arrival(3.0, "m1")], 2.0, gpus=2, places=1)

    assert result.whole.act.mean == pytest.approx((2.5 + 2.0 + 0.5) / 2)


@pytest.mark.slow
def test_prefetch_ends_calls_that_wait_for_an_api_sooner(monkeypatch: pytest.MonkeyPatch):
    arrived = Arrivals(make_requests(2000, 1), NAMES, gpus=6, load=0.8, seconds=20.0, seed=1).all()
    ahead = searching(arrived, 5.0, gpus=8, places=6)
    monkeypatch.setattr(ServiceResidency, "end_cycle", lambda self, decisions: None)
    never = searching(arrived, 5.0, gpus=8, places=6)

    assert ahead.restores_met > 0
    assert ahead.whole.act.mean < never.whole.act.mean
