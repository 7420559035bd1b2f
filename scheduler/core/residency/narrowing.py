"""Narrowing: calls of a service that a selector steers may have the selected count of GPUs alone (`residency.selectors`, rules 1 and 2)."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from domain.action import Action
from domain.resources import MILLI, UnitSet
from domain.services import service_name
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State

_GPU: Final = "gpu"


def narrowed(state: State, action: Action, pool: str) -> tuple[Action, UnitSet]:
    """Return a new ``action`` with the selected count, and those that it asked for; () where it keeps them."""
    asked = action.cost.get(_GPU, ())
    wanted = _units(state, action, pool, asked)
    return (action, ()) if wanted == asked else (_with_units(action, wanted), asked)


def narrow(state: State, live: LiveAction) -> bool:
    """Let a waiting call have the count that is selected now; return whether its counts changed."""
    action = live.action
    if action.call is None or _GPU not in action.cost:
        return False
    asked = live.asked_units or action.cost[_GPU]
    wanted = _units(state, action, live.pool, asked)
    if wanted == action.cost[_GPU]:
        return False
    live.asked_units = asked if wanted != asked else ()
    live.action = _with_units(action, wanted)
    state.learned.choices.pop(action.id, None)
    return True


def _with_units(action: Action, units: UnitSet) -> Action:
    if action.cost.get(_GPU, ()) == units:
        return action
    return replace(action, cost={**action.cost, _GPU: units})


def _units(state: State, action: Action, pool: str, asked: UnitSet) -> UnitSet:
    """Return the counts that a call may have, of those that it asked for."""
    target = "" if action.call is None else action.call.target
    selector = state.residency.memory.selectors.steering.get(target)
    count = None if selector is None else selector.units()
    if count is None or count not in asked:
        return asked
    service = state.config.services.get(service_name(target) or "")
    memory = 0 if service is None else service.memory_bytes(count // MILLI)
    return (count,) if _has_chunk(state, pool, count, memory) else asked


def _has_chunk(state: State, pool: str, count: int, memory: int) -> bool:
    """Return whether some node of ``pool`` has as many GPUs, with the memory."""
    have = (node.inventory.resources.get(_GPU) for node in state.supply.nodes_of(pool))
    return any(
        each is not None
        and each.capacity >= count
        and (not each.memory_bytes or each.memory_bytes >= memory)
        for each in have
    )
