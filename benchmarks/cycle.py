"""cycle: the core alone, warm, on the paper's testbed: 15 nodes × 256 cores, 1,536 trajectories.

Every trajectory thinks, acts (elastic, up to 16 cores), and thinks again, on a virtual clock; what
is measured is the wall time of each `Machine.handle`. Target: median ≤ 0.5 ms; all of them together
≤ 1 % of the executions' time.
"""

from __future__ import annotations

import argparse
import random
import time
from heapq import heappop, heappush
from typing import Any

from benchmarks.record import quantiles, store
from domain import events
from domain.action import Action, ExecSpec, Kind, Outcome
from domain.decisions import Decision, Grant, Resize
from domain.elasticity import Elasticity
from domain.ids import ActionId
from domain.inventory import Config, NodeInventory, PoolConfig, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from managers.registry import load
from scheduler.core.machine import Machine

NODES, CORES, TRAJECTORIES = 15, 256, 1536
COUNTS = tuple(count * MILLI for count in range(1, 17))


class World:
    """Trajectories and nodes on a virtual clock around one machine."""

    def __init__(self, policy: str, think_seconds: float, seed: int = 7) -> None:
        self._rng = random.Random(seed)
        self._think = think_seconds
        pools = {"default": PoolConfig("default", policy)}
        config = Config(1, {"default": ProjectConfig("default")}, pools)
        self.machine = Machine(load(()).make_ledger, config)
        self.took: list[float] = []
        self.execution_seconds = 0.0
        self.act_seconds = 0.0
        self.finished = 0
        self._actions: dict[str, Action] = {}
        self._submitted: dict[str, float] = {}
        #: Begin and end of what runs, and milli-cores of those with a profile.
        self._ends: dict[str, tuple[float, float]] = {}
        self._held: dict[str, int] = {}
        self._due: list[tuple[float, int, events.Event]] = []
        self._count = 0
        for number in range(NODES):
            have = {"cpu": ResourceInventory(CORES * MILLI), "memory": ResourceInventory(2**41)}
            node = NodeInventory(f"n{number:02d}", f"disk{number}", 1, "default", have)
            self._at(0.0, events.NodeJoined(node=node))
        for number in range(TRAJECTORIES):
            self._at(1.0 + self._rng.expovariate(1 / think_seconds), self._action(number))

    def _at(self, at: float, event: events.Event) -> None:
        self._count += 1
        heappush(self._due, (at, self._count, event))

    def _action(self, trajectory: int) -> events.Event:
        """Return the next action of a trajectory: mostly short ones, some long test suites."""
        self._count += 1
        test = self._rng.random() < 0.15
        action = Action(
            id=ActionId(f"{trajectory}-{self._count}"),
            project="default",
            task="bench",
            kind=Kind.EXEC,
            trajectory=f"t{trajectory}",
            cost={"cpu": COUNTS if test else (MILLI,)},
            duration_seconds=self._rng.lognormvariate(3.5, 0.8) if test else None,
            elasticity=Elasticity(amdahl=0.95) if test else None,
            family="test" if test else "shell",
            malleable=test,
            exec=ExecSpec(("true",)),
        )
        self._actions[action.id] = action
        return events.ActionSubmitted(action=action)

    def run(self, actions: int) -> None:
        """Live until so many actions are finished."""
        while self.finished < actions:
            at, _, event = heappop(self._due)
            event.at = at
            if isinstance(event, events.ActionSubmitted):
                self._submitted[event.action.id] = at
            elif isinstance(event, events.ActionFinished):
                if self._ends.get(event.action_id, (0.0, 0.0))[1] != at:
                    continue  # it was resized since, and ends at another time
                self._end(event.action_id, at)
            began = time.perf_counter()
            decisions = self.machine.handle(event)
            self.took.append(time.perf_counter() - began)
            self._obey(decisions, at)

    def _end(self, name: ActionId, at: float) -> None:
        self.finished += 1
        began, ends = self._ends.pop(name)
        self.execution_seconds += ends - began
        self.act_seconds += at - self._submitted.pop(name)
        del self._actions[name]
        trajectory = int(name.partition("-")[0])
        self._at(at + self._rng.expovariate(1 / self._think), self._action(trajectory))

    def _obey(self, decisions: list[Decision], at: float) -> None:
        asked = self.machine.state.timers.asked_wake
        if asked is not None and (not self._due or asked < self._due[0][0]):
            self._at(asked, events.TimeAdvanced())
        for decision in decisions:
            if isinstance(decision, Grant):
                node = decision.node or ""
                self._at(at, events.ActionStarted(action_id=decision.action_id, node=node))
                self._end_at(decision.action_id, node, at, at + self._duration(decision))
            elif isinstance(decision, Resize):
                self._resize(decision, at)

    def _end_at(self, name: ActionId, node: str, began: float, ends: float) -> None:
        self._ends[name] = began, ends
        done = events.ActionFinished(
            action_id=name, node=node, outcome=Outcome.COMPLETED, execution_seconds=ends - began
        )
        self._at(ends, done)

    def _resize(self, resize: Resize, at: float) -> None:
        """Scale what is left of a run; the end that was planned before is passed over."""
        began, ends = self._ends[resize.action_id]
        action, held = self._actions[resize.action_id], self._held[resize.action_id]
        profile = action.elasticity or Elasticity(amdahl=0.0)
        before, after = (profile.duration_seconds(1.0, m) for m in (held, resize.allocation.amount))
        self._held[resize.action_id] = resize.allocation.amount
        self._end_at(resize.action_id, resize.node, began, at + (ends - at) * after / before)

    def _duration(self, grant: Grant) -> float:
        action = self._actions[grant.action_id]
        if action.elasticity is None or action.duration_seconds is None:
            return self._rng.lognormvariate(-1.0, 1.2)
        amount = next(a.amount for a in grant.allocations if a.resource.startswith("cpu:"))
        self._held[grant.action_id] = amount
        return action.elasticity.duration_seconds(action.duration_seconds, amount)


def _measure(policy: str, think_seconds: float, actions: int) -> dict[str, Any]:
    world = World(policy, think_seconds)
    world.run(actions // 4)  # warm
    world.took.clear()
    before, done, act = world.execution_seconds, world.finished, world.act_seconds
    world.run(actions)
    counted = world.finished - done
    return {
        **quantiles(world.took),
        "overhead_share": round(sum(world.took) / (world.execution_seconds - before), 5),
        "mean_act_seconds": round((world.act_seconds - act) / counted, 3),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=int, default=8_000)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    result = {}
    for policy in ("minimum", "fixed(4)", "paper", "balanced", "malleable"):
        for load_name, think in (("light", 20.0), ("heavy", 1.0)):
            result[f"{policy} {load_name}"] = _measure(policy, think, options.actions)
            print(policy, load_name, result[f"{policy} {load_name}"])
    if not options.dry:
        print("stored in", store("cycle", {"result": result}))


if __name__ == "__main__":
    main()
