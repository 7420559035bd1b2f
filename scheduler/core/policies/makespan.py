"""Policy ``makespan``: minimises the step, at a bounded loss in the mean ACT.

A synchronous trainer waits for the slowest trajectory of a step (ARL-Tangram §2). A trajectory is *critical* when
the predicted rest of it (`scheduler.core.state.critical_paths`) is at least `CRITICAL_SHARE` of the largest rest
in the pool: when it waits, the step becomes longer. All else is decided as by ``malleable``.

Order. Actions of critical trajectories are served before their turn, those with more left first. Serving *all*
actions by what their trajectories have left would end all trajectories at the same time, and so keep the queue
long until then: simulated, the mean ACT grew by half. Few trajectories decide the step; the others keep the
order of arrival. Each overtaking is charged with the delay that it is predicted to cause; together, these delays
are at most ``loss_percent`` of the ACT of finished actions. An action that would exceed that is served in its turn.

Units are distributed as by ``malleable`` (decision 0244 has what the alternatives gained and cost).

An action without a trajectory is served in its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from scheduler.core.policies.group import Outlook
from scheduler.core.policies.malleable import Malleable
from scheduler.core.policies.registry import register

#: Of the largest predicted rest: from here on a trajectory may set the end of the step.
CRITICAL_SHARE: Final = 0.7
LOSS_PERCENT: Final = 5


@register("makespan")
@dataclass(frozen=True)
class Makespan(Malleable):
    """`Malleable`, with critical trajectories first. ``loss_percent`` bounds the loss in the mean ACT."""

    name: str = "makespan"
    loss_percent: int = LOSS_PERCENT

    leads: ClassVar[bool] = True

    def critical(self, remaining_seconds: float, longest_seconds: float) -> bool:
        """Return whether the rest is at least `CRITICAL_SHARE` of the longest."""
        return remaining_seconds >= CRITICAL_SHARE * longest_seconds

    def lead(self, outlook: Outlook) -> float:
        """Return the rest as a part of the longest one; 0 if the delay is not affordable."""
        delays = outlook.delayed_seconds + outlook.delay_seconds
        if delays * 100 > self.loss_percent * outlook.act_seconds:
            return 0.0
        return min(1.0, outlook.remaining_seconds / max(outlook.longest_seconds, 1e-9))


@register("makespan(p)")
def bounded(loss_percent: int) -> Makespan:
    """Return the policy with another bound on the loss in the mean ACT."""
    return Makespan(name=f"makespan({loss_percent})", loss_percent=loss_percent)
