"""gpu_chunks: a decision over chunks of GPUs, and the ledger of 1,000 nodes.

Targets, numpy alone: 5 nodes × 8 GPUs, 64 waiting services: a whole decision of policy `paper` p99
≤ 8 ms; 1,000 nodes × 8 GPUs: choosing and entering a chunk p99 ≤ 1 ms. Each is measured on the wall
and in time of the processor (``cpu``), which is the same on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import combinations
from typing import Any

from benchmarks.record import quantiles, store
from domain.elasticity import Elasticity
from domain.ids import ActionId, ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger
from scheduler.core.advice.planner import (
    PlanningProblem,
    ResourceSnapshot,
    WaitingAction,
    plan_grants,
)
from scheduler.core.policies.registry import policy_named

GPU = ResourceId("gpu:g")
GIB = 2**30
SIZES = (1, 2, 4, 8)
SERVICES = 20


class Watch:
    """Times what is done under it."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._cpu.append(time.thread_time() - self._began[1])
        self._wall.append(time.perf_counter() - self._began[0])

    def result(self, first: int = 0) -> dict[str, Any]:
        """Return quantiles of all times from the ``first`` on."""
        return {**quantiles(self._wall[first:]), "cpu": quantiles(self._cpu[first:])}


def _ledger(nodes: int) -> ChunkLedger:
    groups = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(nodes))
    return ChunkLedger(GPU, ResourceInventory(8 * nodes * MILLI, groups, memory_bytes=80 * GIB))


def _waiting(rng: random.Random, number: int) -> WaitingAction:
    """Return a call of a service that runs on one GPU, and on one to three other chunks."""
    counts = (1, *rng.choice([some for n in range(1, 4) for some in combinations(SIZES[1:], n)]))
    return WaitingAction(
        ActionId(f"a{number}"),
        {GPU: tuple(count * MILLI for count in counts)},
        duration_seconds=rng.lognormvariate(1.0, 1.0),
        elasticity=Elasticity(amdahl=rng.uniform(0.7, 1.0)),
    )


def _decisions(rng: random.Random, rounds: int, fragmented: bool) -> dict[str, Any]:
    """Decide problems over 5 × 8 GPUs, each with other services and other free chunks."""
    policy, watch, states = policy_named("paper"), Watch(), []
    for _ in range(rounds):
        ledger = _ledger(5)
        for number in range(rng.randint(4, 20) if fragmented else 0):
            ledger.take(f"h{number}", (rng.choice(sorted(_free(ledger))),))
        have = ResourceSnapshot(ledger.free, [rng.expovariate(1.0)], ledger.counts)
        problem = PlanningProblem({GPU: have}, [_waiting(rng, number) for number in range(64)])
        states.append(ledger.operator(()).states)
        with watch:
            plan = plan_grants(problem, policy)
        if not plan.selected:
            raise SystemExit("no action was selected")
    return {**watch.result(), "most_states": max(states)}


def _free(ledger: ChunkLedger) -> set[int]:
    held = {unit for have in ledger.holders().values() for unit in have.units}
    return set(range(ledger.capacity // MILLI)) - held


def _allocations(rng: random.Random, rounds: int) -> dict[str, Any]:
    """Keep 1,000 nodes two thirds full of services that come and go, and time each coming."""
    ledger, watch, hits = _ledger(1000), Watch(), 0
    live: list[str] = []
    for number in range(rounds):
        service, size = f"s{rng.randrange(SERVICES)}", rng.choice(SIZES)
        memory = rng.choice((20, 40, 70)) * GIB
        while ledger.free < ledger.capacity // 3 or not ledger.fits((size * MILLI,)):
            ledger.release(live.pop(rng.randrange(len(live))))
        with watch:
            ledger.allocate(f"h{number}", size * MILLI, service, memory)
            hits += ledger.occupy(f"h{number}", service, memory).cached
        live.append(f"h{number}")
    return {**watch.result(rounds // 2), "cached_share": round(hits / rounds, 3)}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    rng = random.Random(7)
    _decisions(rng, 20, fragmented=True)  # warm
    result = {
        "decision_64_waiting_5_nodes_free": _decisions(rng, options.rounds, fragmented=False),
        "decision_64_waiting_5_nodes_in_pieces": _decisions(rng, options.rounds, fragmented=True),
        "allocation_1000_nodes": _allocations(rng, 20 * options.rounds),
    }
    for name, numbers in result.items():
        print(name, numbers)
    if not options.dry:
        print("stored in", store("gpu_chunks", {"result": result}))


if __name__ == "__main__":
    main()
