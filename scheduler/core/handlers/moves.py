"""Reports of nodes that move environments (`state.moves`); those of another move than the present one change nothing."""

from __future__ import annotations

from domain.decisions import Decision
from domain.events import EnvironmentPacked, EnvironmentReceived
from domain.moves import FAILED
from scheduler.core.state.live import LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.moves import end_move, packed, received


def was_packed(state: State, event: EnvironmentPacked, decisions: list[Decision]) -> None:
    """Go on with a move whose source has packed the environment, or end it."""
    trajectory = _moved(state, event, packed=False)
    if trajectory is None or trajectory.node != event.node:
        return
    if event.failed:
        stays = event.stays or FAILED
        end_move(state, trajectory, event.failed, decisions, stays=stays, reported=True)
    else:
        packed(state, trajectory, decisions)


def was_received(state: State, event: EnvironmentReceived, decisions: list[Decision]) -> None:
    """End a move: the target has the environment, or failed to get it."""
    trajectory = _moved(state, event, packed=True)
    if trajectory is None or trajectory.move is None or trajectory.move.target != event.node:
        return
    if event.failed:
        end_move(state, trajectory, event.failed, decisions)
    else:
        received(state, trajectory, decisions)


def _moved(
    state: State, event: EnvironmentPacked | EnvironmentReceived, *, packed: bool
) -> LiveTrajectory | None:
    """Return the trajectory whose present move is the one of ``event``, in the state that it reports on."""
    trajectory = state.trajectories.get(event.trajectory)
    move = None if trajectory is None else trajectory.move
    if move is None or (move.number, move.packed) != (event.number, packed):
        return None
    return trajectory
