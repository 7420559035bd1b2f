"""Counts of a running replay for the progress bar, and samples for its report."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from tangram_client.models import ActionTiming, ActionView

#: Samples kept. An endless replay reports on its latest actions; the counts cover all.
SAMPLES = 200_000


@dataclass
class ReplayTally:
    """Counts of one replay."""

    trajectories_total: int | None = None
    actions_total: int | None = None
    trajectories_done: int = 0
    #: Trajectories given up after an error of the client or the server, by its text.
    failures: Counter[str] = field(default_factory=Counter)
    submitted: int = 0
    #: Finished actions by outcome; ``refused`` are those that could never fit.
    outcomes: Counter[str] = field(default_factory=Counter)
    nonzero_exits: int = 0
    granted_core_seconds: float = 0.0
    used_core_seconds: float = 0.0
    samples: deque[ActionTiming] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    #: As the server last said; None before it did.
    running: int | None = None
    queued: int | None = None

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())

    def finish(self, action: ActionView, cpu_seconds: float) -> None:
        """Count a finished action; ``cpu_seconds`` is what its command was meant to use."""
        self.outcomes[action.outcome or "unknown"] += 1
        self.nonzero_exits += action.completed and action.exit_code not in {0, None}
        self.used_core_seconds += cpu_seconds if action.completed else 0.0
        if action.timing is not None:
            self.samples.append(action.timing)
            # Cores are held from the grant to the end: overhead and execution.
            held = action.timing.act_seconds - action.timing.queue_seconds
            self.granted_core_seconds += action.units.get("cpu", 0.0) * held

    def refuse(self) -> None:
        """Count an action that the server will never run."""
        self.outcomes["refused"] += 1

    def fail(self, error: Exception) -> None:
        """Count a trajectory that was given up."""
        self.failures[str(error).splitlines()[0]] += 1
