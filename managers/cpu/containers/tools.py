"""What all runs of a driver share, and the small questions they ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from domain.allocation import Allocation, UsedResources
from domain.resources import MILLI
from managers.common.start_log import MarkThread
from managers.cpu.containers.cgroups import Usage
from managers.cpu.containers.environment import Share
from managers.cpu.containers.environments import Environments, Site
from managers.cpu.containers.exec_backends import Way


@dataclass(frozen=True)
class Tools:
    """What all runs of a driver share."""

    site: Site
    environments: Environments
    way: Way
    marks: MarkThread
    #: Cores of the machine, by their lowest thread.
    cores: Mapping[int, frozenset[int]]

    def share_of(self, granted: Allocation | None) -> Share:
        """Return what a container gets for granted cores: all threads of each.

        Without granted cores it may run on any, but gives way there to whoever was granted them.
        Cores that do not exist, of an oversubscribed node, are mapped onto those that do.
        """
        everything = frozenset().union(*self.cores.values())
        if granted is None or not granted.units:
            return Share(everything, yields=True)
        known = sorted(self.cores)
        cores = (core if core in self.cores else known[core % len(known)] for core in granted.units)
        milli = granted.amount if granted.shared or granted.amount < MILLI else None
        return Share(frozenset().union(*(self.cores[core] for core in cores)), milli)


def used_between(before: Usage | None, after: Usage | None) -> Usage | None:
    """Return what was used between two looks; None when one of them saw nothing."""
    if before is None or after is None:
        return None
    return Usage(
        after.cpu_seconds - before.cpu_seconds,
        after.throttled_seconds - before.throttled_seconds,
        after.peak_memory_bytes,
        after.oom_kills - before.oom_kills,
    )


def reported(used: Usage | None) -> UsedResources | None:
    """Return usage as a result carries it."""
    if used is None:
        return None
    return UsedResources(used.cpu_seconds, used.throttled_seconds, used.peak_memory_bytes)
