"""Registry of launchers: engine → launcher. Built-in ones, and those of the entry-point group ``tangram.launchers``.

Rules
1. A launcher is imported with the first group that names its engine: its library (Ray, the client of Kubernetes) is needed
   then alone. One that cannot be imported fails its own groups, with a message that names the cure.
2. A name that a built-in launcher has, or an earlier package by name, stays with it; the other is logged and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from domain.errors import TangramError
from managers.launch.launcher import ENTRY_POINTS, LaunchError, NodeLauncher

#: Name → ``module:function``; the same as in ``pyproject.toml``.
BUILT_IN: Final[Mapping[str, str]] = {
    "kubernetes": "managers.launch.kubernetes_cluster:make",
    "processes": "managers.launch.processes:make",
    "ray": "managers.launch.ray_cluster:make",
    "slurm": "managers.launch.slurm_cluster:make",
    "ssh": "managers.launch.ssh:make",
}

log = logging.getLogger(__name__)


def places(found: Iterable[EntryPoint] | None = None) -> dict[str, str]:
    """Return the place of each launcher, as ``module:function``, of ``found`` (default: all installed packages)."""
    known = dict(BUILT_IN)
    points = entry_points(group=ENTRY_POINTS) if found is None else found
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        if known.setdefault(point.name, point.value) != point.value:
            log.error(
                "launcher %s = %s is left out: the name is taken by %s; uninstall one of them",
                point.name, point.value, known[point.name],
            )  # fmt: skip
    return known


def make_launcher(
    engine: str, options: Mapping[str, str], found: Iterable[EntryPoint] | None = None
) -> NodeLauncher:
    """Make the launcher of a group. Raises LaunchError for one that is missing or broken, InvalidRequest for its options."""
    known = places(found)
    place = known.get(engine)
    if place is None:
        raise LaunchError(
            f"there is no launcher for engine {engine!r}: it is one of {', '.join(sorted(known))};"
            " install the package that has another"
        )
    module, _, path = place.partition(":")
    try:
        make: object = import_module(module)
        for name in path.split("."):
            make = getattr(make, name)
    except Exception as error:  # any error of a foreign module on import
        raise LaunchError(
            f"the launcher of engine {engine!r} ({place}) cannot be loaded: {type(error).__name__}: {error};"
            " install what it needs in the environment of the projector's worker"
        ) from error
    if not callable(make):
        raise LaunchError(f"the launcher of engine {engine!r} ({place}) is no function")
    try:
        launcher: NodeLauncher = make(options)
    except TangramError:
        raise
    except Exception as error:  # any error of a foreign launcher
        raise LaunchError(
            f"the launcher of engine {engine!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return launcher
