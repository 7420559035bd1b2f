"""Identifiers: distinct types, sortable by creation time, with the noun as their prefix."""

from __future__ import annotations

from typing import NewType

ActionId = NewType("ActionId", str)
#: ``project/trajectory``: trainers choose trajectory names, projects keep them apart.
TrajectoryKey = NewType("TrajectoryKey", str)
#: ``project/task``.
TaskKey = NewType("TaskKey", str)
NodeName = NewType("NodeName", str)
PoolName = NewType("PoolName", str)
ProjectName = NewType("ProjectName", str)
#: One countable thing with one ledger: ``cpu:n1``, ``memory:n1``, ``api:search``.
ResourceId = NewType("ResourceId", str)


def action_id(epoch_milliseconds: int, entropy: bytes) -> ActionId:
    """Name one action so that ids sort by creation time.

    ``entropy`` is 8 random bytes. The result is ``act_`` and 28 hexadecimal digits: 12 of time,
    16 of entropy.
    """
    return ActionId(f"act_{epoch_milliseconds:012x}{entropy.hex()}")


def trajectory_key(project: str, trajectory: str) -> TrajectoryKey:
    """Return the name under which the core knows ``trajectory`` of ``project``."""
    return TrajectoryKey(f"{project}/{trajectory}")


def task_key(project: str, task: str) -> TaskKey:
    """Return the name under which the core knows ``task`` of ``project``."""
    return TaskKey(f"{project}/{task}")


def node_resource(kind: str, node: str) -> ResourceId:
    """Return the resource that ``node`` offers of ``kind``, as in ``cpu:n1``."""
    return ResourceId(f"{kind}:{node}")
