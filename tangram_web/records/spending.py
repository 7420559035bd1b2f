"""Spending of actions: units requested, granted and used, times the seconds they were held.

*Asked* is the smallest feasible count; a policy may grant more. *Granted* is what the action held
from its grant to its end: the integral if it was resized. *Used* is the CPU time that the kernel
counted for commands. GPUs, leases and calls have no such count, so *measured* is the granted part
for which *used* is known.

A trajectory's *peak* is the widest grant of any of its actions: a system that reserves units for
the whole life of a trajectory would hold that many from its first to its last action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from domain.decisions import Finish
from domain.resources import MILLI


@dataclass(slots=True, kw_only=True)
class Spending:
    """Sums over finished actions, in units times seconds; peaks in units."""

    asked_core_seconds: float = 0.0
    granted_core_seconds: float = 0.0
    #: Granted to actions whose use is counted, and their use.
    measured_core_seconds: float = 0.0
    used_core_seconds: float = 0.0
    asked_gpu_seconds: float = 0.0
    granted_gpu_seconds: float = 0.0
    peak_cores: float = 0.0
    peak_gpus: float = 0.0

    def add(self, other: Spending) -> None:
        """Add the spending of an action."""
        self.asked_core_seconds += other.asked_core_seconds
        self.granted_core_seconds += other.granted_core_seconds
        self.measured_core_seconds += other.measured_core_seconds
        self.used_core_seconds += other.used_core_seconds
        self.asked_gpu_seconds += other.asked_gpu_seconds
        self.granted_gpu_seconds += other.granted_gpu_seconds
        self.peak_cores = max(self.peak_cores, other.peak_cores)
        self.peak_gpus = max(self.peak_gpus, other.peak_gpus)


#: Columns that add up, and columns that keep the highest value.
SUMS = tuple(name for name in Spending.__slots__ if name.endswith("_seconds"))
PEAKS = tuple(name for name in Spending.__slots__ if name.startswith("peak_"))


def spending_of(finish: Finish, cost: Mapping[str, Sequence[float]]) -> Spending:
    """Return the spending of a finished action. ``cost`` is its request: feasible units by name."""
    spent = Spending()
    held_seconds = max(0.0, finish.timing.act_seconds - finish.timing.queue_seconds)
    for allocation in finish.allocations:
        kind = allocation.resource.partition(":")[0]
        units = allocation.amount / MILLI
        # Without a choice of counts it asked for what it holds: whole chunks, a light action.
        asked = min(cost.get(kind) or (units,)) * held_seconds
        if kind == "cpu":
            integral = finish.key_milli_seconds / MILLI if finish.resizes else units * held_seconds
            spent.granted_core_seconds = integral
            spent.asked_core_seconds = asked
            widths = (milli / MILLI for _, milli in finish.widths)
            spent.peak_cores = max((units, *widths))
        elif kind == "gpu":
            spent.granted_gpu_seconds = units * held_seconds
            spent.asked_gpu_seconds = asked
            spent.peak_gpus = units
    if finish.used is not None:
        spent.used_core_seconds = finish.used.cpu_seconds
        spent.measured_core_seconds = spent.granted_core_seconds
    return spent


_decode_cost = msgspec.json.Decoder(dict[str, list[float]]).decode


def cost_from(text: str) -> dict[str, list[float]]:
    """Return the cost in an action's row."""
    return {} if text == "{}" else _decode_cost(text)
