"""Loads of nodes: what hangs on each, and what a drain waits for that lets trajectories finish."""

from __future__ import annotations

from collections import Counter, defaultdict

from contract.status import DrainProgress, NodeLoad
from domain.moves import drain_text
from scheduler.core.state.model import State
from scheduler.core.state.moves import why_stays


def node_loads(state: State) -> dict[str, NodeLoad]:
    """Return what hangs on each node."""
    there: Counter[str] = Counter()
    for each in state.trajectories.values():
        if each.node and not each.removing:
            there[each.node] += 1
        if each.move is not None and each.move.target:
            there[each.move.target] += 1  # a node that gets an environment is not empty
    return {
        name: NodeLoad(
            node.inventory.incarnation,
            node.lost_at is not None,
            name in state.config.drained_nodes,
            len(state.supply.on_node.get(name, ())),
            there[name],
        )
        for name, node in state.supply.nodes.items()
    }


def drain_progress(state: State) -> dict[str, DrainProgress]:
    """Return the progress of each drain that lets trajectories finish."""
    draining = state.config.finishing_nodes & state.supply.nodes.keys()
    if not draining:
        return {}
    moving: Counter[str] = Counter()
    stays: dict[str, Counter[str]] = defaultdict(Counter)
    for each in state.environments.on(*draining):
        if each.node is None or each.removing:
            continue
        if each.move is not None:
            moving[each.node] += 1
        else:
            stays[each.node][why_stays(state, each, state.supply.nodes[each.node])] += 1
    return {
        name: _progress(state.supply.nodes[name].moved, moving[name], dict(stays[name]))
        for name in sorted(draining)
    }


def _progress(moved: int, moving: int, stays: dict[str, int]) -> DrainProgress:
    there = moving + sum(stays.values())
    return DrainProgress(there, moved, moving, stays, drain_text(moved, moving, stays))
