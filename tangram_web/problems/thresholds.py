"""Thresholds of problems, each an environment variable ``TANGRAM_PROBLEM_<NAME>``.

Where a problem is raised above one value and cleared below another, both are here: between them a problem
that is raised stays raised, and one that is not stays away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

#: Begins the names of the variables.
PREFIX = "TANGRAM_PROBLEM_"


@dataclass(frozen=True)
class ProblemThresholds:
    """Values above which a condition holds; times are in seconds."""

    #: Age of the last sign of life of a worker that is not lost yet.
    node_late_seconds: float = 5.0
    #: A part that shows no life for this long is dead.
    part_dead_seconds: float = 10.0
    #: Lag of a reader of the journal, and where it has caught up.
    lag_seconds: float = 30.0
    lag_clear_seconds: float = 10.0
    #: Age of the last heartbeat of the leader.
    heartbeat_seconds: float = 5.0
    #: Entries of the inbox that the leader has not read.
    inbox_entries: float = 1000.0
    #: Age of the last sign of life of a web process that is not dead yet.
    web_late_seconds: float = 6.0
    #: Delay of the event loop of a web process, and where it keeps up again.
    web_delay_seconds: float = 1.0
    web_delay_clear_seconds: float = 0.5
    #: Restores of one service in a minute, and where it is calm again.
    restores_per_minute: float = 6.0
    restores_clear_per_minute: float = 3.0
    #: Share of a task's actions that fail within ten minutes, and where it is healthy again.
    failing_share: float = 0.5
    failing_clear_share: float = 0.3
    #: Least actions, or rollouts without a reward, of a task in ten minutes.
    failing_actions: float = 20.0
    unrewarded_rollouts: float = 5.0
    #: Commands of a family run this many times as long as before, and where they are usual again.
    slow_factor: float = 3.0
    slow_clear_factor: float = 1.5
    #: They run longer by at least so much; least commands within the window, and the window.
    slow_seconds: float = 1.0
    slow_actions: float = 20.0
    slow_window_seconds: float = 600.0
    #: Least commands before the window, and least time between the first of them and the window.
    slow_earlier_actions: float = 50.0
    slow_earlier_seconds: float = 600.0
    #: Used part of the memory that Redis may take, and where it has room again.
    redis_memory_share: float = 0.85
    redis_memory_clear_share: float = 0.75
    #: An action at the head of a queue has waited for another one this long, and holds up this many.
    blocked_seconds: float = 300.0
    blocked_actions: float = 5.0


def thresholds_of(read: Callable[[str, float], float]) -> ProblemThresholds:
    """Return the thresholds; ``read`` returns the value of a variable, or its default."""
    given = {
        each.name: read(f"{PREFIX}{each.name.upper()}", float(str(each.default)))
        for each in fields(ProblemThresholds)
    }
    return ProblemThresholds(**given)
