"""Identifiers: distinct types, sortable by creation time, prefixed with their noun."""

from __future__ import annotations

from typing import NewType

ActionId = NewType("ActionId", str)
#: ``project/trajectory``: trainers choose trajectory names, projects separate them.
TrajectoryKey = NewType("TrajectoryKey", str)
#: ``project/task``.
TaskKey = NewType("TaskKey", str)
NodeName = NewType("NodeName", str)
PoolName = NewType("PoolName", str)
ProjectName = NewType("ProjectName", str)
#: One countable thing with one ledger: ``cpu:n1``, ``memory:n1``, ``api:search``.
ResourceId = NewType("ResourceId", str)


def action_id(epoch_milliseconds: int, entropy: bytes) -> ActionId:
    """Return a new action id; ids sort by creation time.

    ``entropy`` is 8 random bytes. The result is ``act_`` and 28 hexadecimal digits: 12 of time,
    16 of entropy.
    """
    return ActionId(f"act_{epoch_milliseconds:012x}{entropy.hex()}")


# The NewType is not called: the call would do nothing, at the cost of building the string.


def trajectory_key(project: str, trajectory: str) -> TrajectoryKey:
    """Return the key of ``trajectory`` in the core."""
    return f"{project}/{trajectory}"  # type: ignore[return-value]


def task_key(project: str, task: str) -> TaskKey:
    """Return the key of ``task`` in the core."""
    return f"{project}/{task}"  # type: ignore[return-value]


def node_resource(kind: str, node: str) -> ResourceId:
    """Return the resource of ``kind`` on ``node``, as in ``cpu:n1``."""
    return f"{kind}:{node}"  # type: ignore[return-value]
