"""Reasons of decisions on elastic groups, as pages and the command line show them. Pure.

A reason has no number that changes with each look without need: a report that stays the same is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from contract.pool_demands import DemandRow
from domain.resources import MILLI
from scheduler.runtime.node_groups.pool_load import Amounts

if TYPE_CHECKING:
    from scheduler.runtime.node_groups.pool_choice import Growth, PoolChoice


def rounded(seconds: float) -> float:
    """Return two digits."""
    return float(f"{seconds:.2g}")


def nodes_of(count: int) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count} node" if count == 1 else f"{count} nodes"


def says_more(choice: PoolChoice, own: int, growth: Growth) -> str:
    """Say what more nodes would bring."""
    count = growth.nodes
    more = f"{count} more node" if count == 1 else f"{count} more nodes"
    return f"{more} would lower the mean ACT{_of_class(choice, own, growth)} by {max(0.0, growth.gain):.0%}"


def says_growth(choice: PoolChoice, own: int, growth: Growth) -> str:
    """Say why a group grows."""
    says = f"{says_more(choice, own, growth)}, from {_seconds(growth.before)} to {_seconds(growth.after)}"
    others = [choice.groups[each].name for each in growth.takers if each != own]
    return f"{says}: more for its cost than {_listed(others)}" if others else says


def chosen_before(says: str, group: str) -> str:
    """Say that another group grows."""
    return f"{says}, but group {group} lowers it more for its cost"


def waits_for(says: str, group: str) -> str:
    """Say that another group of the pool was not looked at yet."""
    return f"{says}; it grows once group {group} was looked at, too"


def engine_is_late(says: str, late: list[float]) -> str:
    """Say that the engine does not start what it was asked for."""
    return f"{says}, but the engine has not started {nodes_of(len(late))} that it was asked for {max(late):.0f} s ago"


def lacking(rows: Iterable[DemandRow], shape: Amounts) -> str:
    """Say what a node of the group lacks for actions that wait; empty: nothing."""
    most: dict[str, int] = {}
    for row in rows:
        needs = {**row.needs, "memory": max(row.memory_bytes, row.needs.get("memory", 0))}
        for kind, amount in needs.items() if row.waiting else ():
            known = kind in shape or kind != "memory"
            if known and amount > shape.get(kind, 0):
                most[kind] = max(most.get(kind, 0), amount)
    has = [_amount(kind, amount) for kind, amount in sorted(most.items())]
    if not has:
        return ""
    return f"no node of this group has {_listed(has, 'or')}, for which actions wait"


def _amount(kind: str, amount: int) -> str:
    if kind == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    units = f"{amount / MILLI:g}"
    names = {"cpu": "core", "gpu": "GPU"}
    if kind in names:
        return f"{units} {names[kind]}{'' if units == '1' else 's'}"
    return f"{units} of {kind}"


def _of_class(choice: PoolChoice, own: int, growth: Growth) -> str:
    """Name the actions whose mean it is, where not all groups take them."""
    if len(growth.takers) == len(choice.groups):
        return ""
    others = [
        group.name for number, group in enumerate(choice.groups) if number not in growth.takers
    ]
    return f" of actions that no node of {_listed(others, 'or')} takes"


def _listed(names: list[str], word: str = "and") -> str:
    return f" {word} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
