"""Timings of the actions of a recorded window, one row each and in the same order for all of its runs.

So runs of one window are compared action by action, and with what was measured. Of a large window only every
k-th trajectory has rows. Seconds have four decimals; None: the action had not ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from domain.action import Timing
from domain.decisions import Decision, Finish, Grant
from domain.events import ActionSubmitted, Event
from domain.ids import ActionId
from domain.resources import MILLI
from scheduler.core.machine import Machine
from simulator.workloads.recorded import Recorded

#: Rows of one run, about.
MOST_ROWS: Final = 10_000
_DIGITS: Final = 4


class ActionRows(msgspec.Struct, frozen=True):
    """Columns: one value for each action."""

    #: Number of its trajectory.
    trajectory: tuple[int, ...]
    queue: tuple[float | None, ...]
    overhead: tuple[float | None, ...]
    execution: tuple[float | None, ...]
    #: Core-seconds that it held.
    cores: tuple[float | None, ...]


class WindowWatch:
    """Watches a simulation: when each action was submitted and granted, and how it ended."""

    def __init__(self) -> None:
        self.submitted: dict[ActionId, float] = {}
        #: First grant.
        self.granted: dict[ActionId, float] = {}
        self.finished: dict[ActionId, Finish] = {}

    def __call__(self, machine: Machine, events: list[Event], decisions: list[Decision]) -> None:
        """Take one pass."""
        now = machine.state.now
        for event in events:
            if type(event) is ActionSubmitted:
                self.submitted[event.action.id] = event.accepted_at
        for decision in decisions:
            if type(decision) is Grant:
                self.granted.setdefault(decision.action_id, now)
            elif type(decision) is Finish:
                self.finished[decision.action_id] = decision

    def waiting_at(self, moment: float, counted: Mapping[ActionId, int]) -> int:
        """Return how many of ``counted`` had been submitted by ``moment`` and not granted."""
        return sum(
            self.submitted.get(name, moment + 1) <= moment < self.granted.get(name, moment + 1)
            for name in counted
        )


def actions_of(window: Recorded, most: int = MOST_ROWS) -> dict[ActionId, int]:
    """Return the counted actions of a window with the number of their trajectory."""
    counted = window.actions - len(window.before)
    every = -(-counted // most)
    return {
        move.act.action.id: number
        for number, moves in enumerate(window.rollouts.values())
        if number % max(1, every) == 0
        for move in moves
        if move.act.action.id not in window.before
    }


def rows_of(actions: Mapping[ActionId, int], finished: Mapping[ActionId, Finish]) -> ActionRows:
    """Return the row of each of ``actions``."""
    ends = [finished.get(name) for name in actions]

    def column(part: str) -> tuple[float | None, ...]:
        return tuple(
            None if end is None else round(getattr(end.timing, part), _DIGITS) for end in ends
        )

    return ActionRows(
        trajectory=tuple(actions.values()),
        queue=column("queue_seconds"),
        overhead=column("overhead_seconds"),
        execution=column("execution_seconds"),
        cores=tuple(None if end is None else round(_cores(end), _DIGITS) for end in ends),
    )


def _cores(end: Finish) -> float:
    if end.resizes and end.key_milli_seconds:
        return end.key_milli_seconds / MILLI
    milli = sum(each.amount for each in end.allocations if each.resource.startswith("cpu:"))
    return milli / MILLI * held_seconds(end.timing)


def held_seconds(timing: Timing) -> float:
    """Return for how long the units of an action were held."""
    return max(0.0, timing.act_seconds - timing.queue_seconds)
