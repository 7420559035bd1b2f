"""Processes of an instance that `managers.launch.machine_program` keeps on this machine."""

from __future__ import annotations

from pathlib import Path

from managers.launch.launcher import Instance


def supervisor_of(instance: Instance) -> int:
    """Return the pid of the supervisor of an instance."""
    return int(instance.handle.removeprefix("pid "))


def worker_of(instance: Instance) -> int:
    """Return the pid of the node worker of a running instance."""
    supervisor = supervisor_of(instance)
    return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0])
