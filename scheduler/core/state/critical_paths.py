"""Critical paths: when trajectories are predicted to end, and what serving the latest ones first has cost.

A synchronous trainer waits for the slowest trajectory of a step (ARL-Tangram §2). What is left of a trajectory
is predicted as

    its present action + (further actions − 1) · cycle + last action

seconds. *Further actions* are declared (`Action.remaining_actions`), else learned: the mean of L − k over the
lengths L > k of the latest trajectories of the task that have ended, k being the actions submitted so far. A
trajectory that is longer than all of them has `LONGER_SHARE` of its length ahead of it, as overdue actions have. A
*cycle* goes from the grant of an action to the submission of the next one (overhead, execution, thinking), and
does not contain the wait in the queue; cycle and last action are decayed means of the task.

Only pools whose policy orders by trajectories are observed. All of it follows from the journal and is part of
the snapshot, but the latest ends, which follow from the trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from domain.ids import TrajectoryKey, task_key
from scheduler.core.policies.choices import DEFAULT_SECONDS
from scheduler.core.state.live import LiveAction, LiveTrajectory

#: A trajectory that is longer than all known ones has this part of its length ahead of it.
LONGER_SHARE: Final = 0.25
#: Lengths of ended trajectories that are remembered for each task.
LENGTHS_KEPT: Final = 128
#: Tasks remembered; the one that was first seen longest ago is dropped.
MOST_TASKS: Final = 1_000
#: Factor by which one further observation reduces the weight of each earlier one.
_DECAY: Final = 0.99
#: As `_DECAY`, for sums over finished actions: about the last 10,000 count.
_ACCOUNT_DECAY: Final = 0.9999


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A decayed mean of seconds."""

    weight: float = 0.0
    seconds: float = DEFAULT_SECONDS

    def with_one(self, seconds: float) -> Mean:
        """Return the mean after one further observation."""
        weight = self.weight * _DECAY + 1.0
        before = self.seconds if self.weight else seconds
        return Mean(weight, before + (seconds - before) / weight)


class TaskPace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is learned of the trajectories of one task."""

    #: From a grant to the submission of the next action.
    cycle: Mean = Mean()
    #: From the grant of a trajectory's last action to its end.
    last: Mean = Mean()
    #: Actions of ended trajectories, latest last.
    lengths: tuple[int, ...] = ()


class DelayAccount(msgspec.Struct, array_like=True, gc=False):
    """Decayed sums of one pool, in seconds."""

    #: ACT of finished actions.
    act_seconds: float = 0.0
    #: Predicted delay of actions that were overtaken.
    delay_seconds: float = 0.0


@dataclass(slots=True)
class CriticalPaths:
    """Paces of tasks, accounts of pools, and the latest predicted end of each pool."""

    #: By task key, in order of first sight.
    paces: dict[str, TaskPace] = field(default_factory=dict)
    #: By pool; a pool without one is not observed.
    accounts: dict[str, DelayAccount] = field(default_factory=dict)
    #: By pool: the latest predicted end, and the trajectory that has it; derived.
    _latest: dict[str, tuple[float, TrajectoryKey]] = field(default_factory=dict)

    def account(self, pool: str) -> DelayAccount:
        """Return the account of ``pool``, which is opened if there is none."""
        return self.accounts.setdefault(pool, DelayAccount())

    def pace(self, trajectory: LiveTrajectory) -> TaskPace:
        """Return what is known of the task of ``trajectory``."""
        return self.paces.get(task_key(trajectory.project, trajectory.task)) or TaskPace()

    def _learn(self, trajectory: LiveTrajectory, pace: TaskPace) -> None:
        key = task_key(trajectory.project, trajectory.task)
        if key not in self.paces and len(self.paces) >= MOST_TASKS:
            del self.paces[next(iter(self.paces))]
        self.paces[key] = pace

    def submitted(
        self, trajectory: LiveTrajectory, live: LiveAction, own_seconds: float, now: float
    ) -> float:
        """Count a submitted action, and return the predicted remaining seconds of its trajectory."""
        pace = self.pace(trajectory)
        if trajectory.last_granted_at is not None:
            cycle = pace.cycle.with_one(max(0.0, live.submitted_at - trajectory.last_granted_at))
            pace = msgspec.structs.replace(pace, cycle=cycle)
            self._learn(trajectory, pace)
            trajectory.last_granted_at = None
        trajectory.submitted += 1
        declared = live.action.remaining_actions
        further = further_actions(pace, trajectory.submitted) if declared is None else declared
        remaining = own_seconds + seconds_of(pace, further)
        trajectory.predicted_end = now + remaining
        return remaining

    def finished(self, trajectory: LiveTrajectory | None, live: LiveAction, now: float) -> None:
        """Count a finished action of an observed pool."""
        account = self.accounts.get(live.pool)
        if account is None:
            return
        account.act_seconds = account.act_seconds * _ACCOUNT_DECAY + now - live.submitted_at
        account.delay_seconds *= _ACCOUNT_DECAY
        if trajectory is not None and live.granted_at is not None and trajectory.submitted:
            trajectory.last_granted_at = live.granted_at
            trajectory.last_seconds = now - live.granted_at

    def ended(self, trajectory: LiveTrajectory) -> None:
        """Learn from a trajectory that is over, if it was observed; a lost one teaches nothing."""
        if trajectory.submitted and not trajectory.lost:
            pace = self.pace(trajectory)
            lengths = (*pace.lengths, trajectory.submitted)[-LENGTHS_KEPT:]
            last = pace.last.with_one(trajectory.last_seconds)
            self._learn(trajectory, TaskPace(pace.cycle, last, lengths))

    def latest_end(
        self,
        pool: str,
        trajectories: Mapping[TrajectoryKey, LiveTrajectory],
        changed: LiveTrajectory,
    ) -> float:
        """Return the latest predicted end of open trajectories of ``pool``; ``changed`` is one of them.

        O(1), but where the trajectory that had it has ended or is predicted to end at another time: O(n).
        """
        known, changed_end = self._latest.get(pool), changed.predicted_end
        latest = None if known is None else trajectories.get(known[1])
        if known is None or latest is None or latest.closing or latest.predicted_end != known[0]:
            ends = (
                (each.predicted_end, each.key)
                for each in trajectories.values()
                if each.pool == pool and each.closing is None
            )
            known = max(ends, default=(changed_end, changed.key))
        self._latest[pool] = known = max(known, (changed_end, changed.key))
        return known[0]


def further_actions(pace: TaskPace, submitted: int) -> float:
    """Return how many actions are expected to follow the ``submitted`` ones of a trajectory."""
    beyond = [length - submitted for length in pace.lengths if length > submitted]
    if beyond:
        return sum(beyond) / len(beyond)
    return LONGER_SHARE * submitted


def seconds_of(pace: TaskPace, further: float) -> float:
    """Return the seconds of ``further`` actions, the last of which is the last of its trajectory."""
    if further <= 0:
        return 0.0
    last = pace.last if pace.last.weight else pace.cycle
    return max(0.0, further - 1.0) * pace.cycle.seconds + min(1.0, further) * last.seconds
