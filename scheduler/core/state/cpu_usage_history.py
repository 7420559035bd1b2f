"""CPU usage of action families, and actions that are light by default.

An exec action without ``cpu`` in its cost takes no core and is confined to none. Where the history of
its family shows that a part of a core is enough, it becomes *light* instead: it runs on shared cores,
with a quota. This applies to actions that declare a ``family``, in pools that do not switch it off
(`PoolConfig.light_by_default`). An action with ``cpu`` in its cost gets that.

The rule. One observation is r = CPU time / time in which it could run (execution less throttling, so
that a quota does not make a family look smaller than it is). The estimate is their decayed maximum:
each further observation multiplies the record by `DECAY`. With a quota of q
cores an action that computed without pause would take r/q of its time instead of r, which stretches it
by r·(1/q − 1) at most. So q = r / (r + `STRETCH`) stretches none of them by more than `STRETCH`,
rounded up to a tenth of a core. From half a core on, sharing gains nothing: it is not light then.

The observations follow from the journal and are part of the snapshot.
"""

from __future__ import annotations

from typing import Final

from domain.action import EXEC, Action
from domain.allocation import UsedResources
from domain.inventory import PoolConfig
from domain.resources import MILLI
from scheduler.core.state.durations import LEAST_SECONDS, family_of
from scheduler.core.state.model import State

#: Observations before the history of a family is used.
ENOUGH: Final = 5
#: No action takes longer by more than this share of its time.
STRETCH: Final = 0.25
#: Amounts are multiples of this, so that actions of many families share few queues.
STEP_MILLI: Final = 100
MOST_MILLI: Final = 500

_DEFAULT: Final = PoolConfig("")


def observe(state: State, action: Action, seconds: float, used: UsedResources) -> None:
    """Add the CPU usage of one completed execution to the history of its family."""
    if action.kind is not EXEC or not action.family:
        return
    cores = used.cpu_seconds / max(seconds - used.throttled_seconds, LEAST_SECONDS)
    state.learned.add_cpu_usage(family_of(action), cores)


def light_amount(state: State, action: Action, pool: str, node: str | None) -> int:
    """Return the milli-cores of an action that is light by default; 0 for any other."""
    if not state.learned.cpu_usage or "cpu" in action.cost or action.kind is not EXEC:
        return 0
    known = state.learned.cpu_usage.get(family_of(action)) if action.family else None
    if known is None or known.observations < ENOUGH:
        return 0
    amount = _amount(known.most_cores)
    if amount > MOST_MILLI or not state.config.pools.get(pool, _DEFAULT).light_by_default:
        return 0
    nodes = state.supply.nodes_of(pool) if node is None else [state.supply.nodes[node]]
    offered = [each.inventory.resources.get("cpu") for each in nodes]
    everywhere = offered and all(have is not None and have.capacity for have in offered)
    return amount if everywhere else 0


def why_light(state: State, action: Action) -> str:
    """Return a sentence about why ``action`` is light."""
    known = state.learned.cpu_usage.get(family_of(action))
    if known is None:  # forgotten since it was queued
        return f"light by default: its family {action.family!r} used little"
    return (
        f"light by default: its family {action.family!r} used {known.most_cores:.2g} cores at most"
        f" lately ({known.observations} observed); name cpu in its cost to have another count"
    )


def _amount(cores: float) -> int:
    milli = cores / (cores + STRETCH) * MILLI
    return max(STEP_MILLI, -(-round(milli) // STEP_MILLI) * STEP_MILLI)
