"""What a replay takes from the state: the services of a pool on chunks of one size, and its chunks."""

from __future__ import annotations

from domain.chunks import amount_at, level_of
from domain.ids import node_resource
from domain.resources import MILLI
from scheduler.core.residency.service_replay import ReplayedService
from scheduler.core.residency.service_turns import KIND, seats_of, times_of
from scheduler.core.state.model import State


class ReplayedServices(dict[str, ReplayedService]):
    """Services on chunks of ``count`` milli-units, each looked up when it is first asked for."""

    def __init__(self, state: State, count: int) -> None:
        super().__init__()
        self._state = state
        self._count = count

    def __missing__(self, name: str) -> ReplayedService:
        state, count = self._state, self._count
        found = self[name] = ReplayedService(
            restore_seconds(state, name, count),
            memory_bytes(state, name, count),
            seats_of(state, name),
        )
        return found


def restore_seconds(state: State, service: str, count: int) -> float:
    """Return the seconds of a restore to ``count`` milli-units: measured, else by the nearest measured count.

    A restore fills each GPU with its part of the service, all of them at once, so it takes time as the declared
    memory of one GPU.
    """
    known = times_of(state, service)
    measured = dict(known.by_count)
    if not measured:
        return known.restore_seconds
    nearest = min(measured, key=lambda each: (max(each, count) / min(each, count), each))
    here, there = (memory_bytes(state, service, each) for each in (count, nearest))
    return measured[nearest] * (here / there if here and there else 1.0)


def memory_bytes(state: State, service: str, count: int) -> int:
    """Return what ``service`` needs of each of ``count`` milli-GPUs; 0: all of it."""
    declared = state.config.services.get(service)
    return 0 if declared is None else declared.memory_bytes(-(-count // MILLI))


def chunks_of(state: State, pool: str, count: int) -> int:
    """Return how many chunks of ``count`` milli-units the usable nodes of ``pool`` have."""
    level, found = level_of(count), 0
    for node in state.supply.nodes_of(pool):
        ledger = state.supply.resident.get(node_resource(KIND, node.name))
        if ledger is not None and level is not None and state.supply.usable(node):
            found += ledger.capacity // amount_at(level)
    return found


def gpu_bytes(state: State, pool: str) -> int:
    """Return the memory of a GPU of ``pool``: the least of its nodes; 1 where none is declared."""
    have = (node.inventory.resources.get(KIND) for node in state.supply.nodes_of(pool))
    return min((each.memory_bytes for each in have if each and each.memory_bytes), default=1)
