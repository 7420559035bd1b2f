"""What an action cost: the units it asked for, got and used, over the time it held them.

*Asked* is its smallest feasible count; a policy may have given it more. *Granted* is what it held
from its grant to its end: the integral where it was resized. *Used* is what the kernel counted of
commands; nothing counts it for GPUs, leases and calls, so *measured* says how much of the granted
is behind the used.

A trajectory's *peak* is the widest grant of any of its actions: what a system that reserves for a
trajectory's whole life would have to hold for it, from its first to its last action's end.
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
    #: Granted to those whose use was counted, and their use.
    measured_core_seconds: float = 0.0
    used_core_seconds: float = 0.0
    asked_gpu_seconds: float = 0.0
    granted_gpu_seconds: float = 0.0
    peak_cores: float = 0.0
    peak_gpus: float = 0.0

    def add(self, other: Spending) -> None:
        """Add an action's spending."""
        self.asked_core_seconds += other.asked_core_seconds
        self.granted_core_seconds += other.granted_core_seconds
        self.measured_core_seconds += other.measured_core_seconds
        self.used_core_seconds += other.used_core_seconds
        self.asked_gpu_seconds += other.asked_gpu_seconds
        self.granted_gpu_seconds += other.granted_gpu_seconds
        self.peak_cores = max(self.peak_cores, other.peak_cores)
        self.peak_gpus = max(self.peak_gpus, other.peak_gpus)


#: Columns that add up; the others keep the highest.
SUMS = tuple(name for name in Spending.__slots__ if name.endswith("_seconds"))
PEAKS = tuple(name for name in Spending.__slots__ if name.startswith("peak_"))


def spending_of(finish: Finish, cost: Mapping[str, Sequence[float]]) -> Spending:
    """Return what a finished action cost. ``cost`` is what it asked for, feasible units by name."""
    spent = Spending()
    held_seconds = max(0.0, finish.timing.act_seconds - finish.timing.queue_seconds)
    for allocation in finish.allocations:
        kind = allocation.resource.partition(":")[0]
        units = allocation.amount / MILLI
        # Whoever has no choice asked for what it has: a lease of whole chunks, a light action.
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
    """Return what an action asked for, as its row says."""
    return {} if text == "{}" else _decode_cost(text)
