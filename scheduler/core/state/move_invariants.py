"""Invariants of moves of environments: a move has one idle trajectory, two nodes, and an end."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.core.state.live import LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind


def moves_agree(state: State) -> Iterator[str]:
    """Yield each violation."""
    pending = state.timers.pending()
    ends = {(at, subject) for at, kind, subject in pending if kind is TimerKind.MOVE}
    for key, trajectory in state.trajectories.items():
        move = trajectory.move
        if (move is not None) != (key in state.moves.active):
            yield f"trajectory {key} is not among the moves on their way, or ought not to be"
        yield from _copies_agree(trajectory)
        if move is None:
            continue
        yield from _is_movable(trajectory)
        if not move.given_up and move.until > state.now and (move.until, key) not in ends:
            yield f"the move of trajectory {key} never ends"
    if state.moves.active - state.trajectories.keys():
        yield "a trajectory that is gone is being moved"
    looks, due = {at for at, kind, _ in pending if kind is TimerKind.MOVES}, state.moves.due
    if due is not None and due > state.now and due not in looks:
        yield "what stays on draining nodes is never looked at again"


def _copies_agree(trajectory: LiveTrajectory) -> Iterator[str]:
    """A node has the environment of a trajectory, or is to remove it."""
    if trajectory.node is not None and trajectory.node in trajectory.copies:
        yield f"trajectory {trajectory.key} lives where its copy is removed"
    if len(set(trajectory.copies)) != len(trajectory.copies):
        yield f"trajectory {trajectory.key} has two copies on one node"


def _is_movable(trajectory: LiveTrajectory) -> Iterator[str]:
    """Nothing uses an environment that is moved, and it goes to another node."""
    key, move = trajectory.key, trajectory.move
    if trajectory.busy or trajectory.forking or trajectory.closing is not None:
        yield f"trajectory {key} is moved while it is used"
    target = "" if move is None else move.target
    if trajectory.node is None or target in (trajectory.node, *trajectory.copies):
        yield f"trajectory {key} is moved from {trajectory.node} to {target}"
