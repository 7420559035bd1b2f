"""The check itself: a state that was tampered with is found out, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from domain.action import ActionState
from domain.allocation import Allocation
from domain.errors import InvariantViolation
from domain.ids import ActionId, ResourceId, trajectory_key
from scheduler.core.state import invariants
from scheduler.core.state.model import State
from scheduler.core.state.timers import Timers
from tests.builders import GIB, a_lease, a_node, an_action
from tests.scenario import Scenario

CPU, MEMORY = ResourceId("cpu:n1"), ResourceId("memory:n1")
RUNNING, QUEUED, LEASE = ActionId("running"), ActionId("queued"), ActionId("lease")
Damage = Callable[[State], object]


def damage(name: str, message: str) -> Callable[[Damage], Damage]:
    def register(function: Damage) -> Damage:
        DAMAGES.append(pytest.param(function, message, id=name))
        return function

    return register


DAMAGES: list[object] = []


@damage("units leak", "cpu:n1: the ledger says")
def _leak(state: State) -> None:
    state.supply.ledgers[CPU].adopt("unknown", Allocation(CPU, 1000))


@damage("units are lost", "cpu:n1: the ledger says")
def _lose(state: State) -> None:
    state.supply.ledgers[CPU].release("running#1")


@damage("memory leaks", "memory:n1: the ledger says")
def _leak_memory(state: State) -> None:
    state.supply.ledgers[MEMORY].release("env:default/t1")


@damage("a core is held twice", "a unit is held twice")
def _twice(state: State) -> None:
    orphan = Allocation(CPU, 1000, (0,))
    state.supply.nodes["n1"].orphans["ghost#1"] = (orphan,)
    state.supply.ledgers[CPU].adopt("ghost#1", orphan)


@damage("an action is forgotten", "lists the wrong actions")
def _forget(state: State) -> None:
    del state.actions[QUEUED]


@damage("a queued action is in no queue", "is in 0 queues")
def _drop_from_line(state: State) -> None:
    live = state.actions[ActionId("alone")]
    assert live.queue is not None
    state.queues.active[live.queue].remove(live)
    live.queue = next(iter(state.queues.active))._replace(pool="nowhere")


@damage("a queue miscounts", "counts")
def _miscount(state: State) -> None:
    next(iter(state.queues.active.values())).size += 1


@damage("a queue has no reason", "waits without a reason")
def _no_reason(state: State) -> None:
    next(iter(state.queues.active.values())).reason = None


@damage("a finished action stays", "is finished and still live")
def _stay(state: State) -> None:
    state.actions[RUNNING].state = ActionState.FINISHED


@damage("a node forgot its action", "it is missing on its node")
def _unlist(state: State) -> None:
    state.supply.on_node["n1"].discard(RUNNING)


@damage("a trajectory runs two", "runs ")
def _two_at_once(state: State) -> None:
    state.actions[QUEUED].state = ActionState.RUNNING


@damage("a change was not looked at", "no cycle has run")
def _dirty(state: State) -> None:
    state.dirty = True


@damage("a lease never expires", "lease lease never expires")
def _no_timer(state: State) -> None:
    state.timers = Timers()


@damage("the core is not woken", "the core is not woken")
def _no_wake(state: State) -> None:
    state.timers.asked_wake = None


@damage("a silent node is waited for", "is silent without a deadline")
def _silent(state: State) -> None:
    state.supply.nodes["n1"].lost_at = state.now


@damage("a trajectory is on another node than is known", "are known to have environments")
def _elsewhere(state: State) -> None:
    state.trajectories[trajectory_key("default", "t1")].node = None


@damage("a node knows an environment twice", "is known to have the environments of")
def _known_twice(state: State) -> None:
    running = state.trajectories[trajectory_key("default", "t1")]
    state.environments.enter(replace(running, key=trajectory_key("default", "t2")))


@damage("an action needs less than is known", "is known to need")
def _other_needs(state: State) -> None:
    alone = state.actions[ActionId("alone")]
    alone.needs = alone.needs._replace(on_node=(("cpu", 2000),))


@damage("a copy is not known", "known to have copies")
def _unknown_copy(state: State) -> None:
    state.moves.copied.add(trajectory_key("default", "t1"))


def a_busy_state() -> State:
    scenario = Scenario(a_node("n1", cpus=2))
    scenario.submit(
        an_action("running", trajectory="t1", memory_bytes=GIB),
        an_action("queued", trajectory="t1"),
        a_lease("lease", cost={"cpu": 1}),
        an_action("alone"),
    )
    return scenario.machine.state


@pytest.mark.parametrize(("tamper", "message"), DAMAGES)
def test_damage_is_found(tamper: Damage, message: str) -> None:
    state = a_busy_state()
    invariants.check(state)

    tamper(state)

    with pytest.raises(InvariantViolation, match=message):
        invariants.check(state)
