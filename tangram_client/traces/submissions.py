"""The actions of a replay: which recordings are played, and what is submitted of each, when.

`tangram replay` submits them to a running Tangram and ``sim --as-replay`` plays them in virtual time, so a
simulation predicts exactly the replay with the same options. There is no jitter and there are no rewards; only a
request for another number of trajectories than the trace has resamples it.

Order: ``concurrency`` players share the recordings in their order; a player takes the next one when its last is
over. The first think time of a trajectory passes before its first action.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tangram_client.traces.burn import asked_seconds, burn_command, burnt_seconds, recorded_cost
from tangram_client.traces.generator import generate
from tangram_client.traces.recording import Recording, parse_recording, read_trace, resample

#: Trajectories that are generated where no number is given.
GENERATED: Final = 8
#: A step may take this much longer than recorded before it is ended.
TIMEOUT_FACTOR: Final = 10.0
TIMEOUT_LEAST_SECONDS: Final = 60.0
#: ``--cost-cpu``: cores as recorded.
FROM_TRACE: Final = "from-trace"

Cost = Callable[[float], float]


def cost_named(text: str) -> Cost:
    """Return the cores to ask for by the cores that were recorded as busy: ``from-trace`` or a number.

    Raises ValueError for anything else.
    """
    if text == FROM_TRACE:
        return recorded_cost
    try:
        cores = float(text)
    except ValueError:
        cores = math.nan
    if not 0 < cores < math.inf:
        raise ValueError(f"give {FROM_TRACE} or a number of cores")
    return lambda recorded: cores


@dataclass(frozen=True)
class Source:
    """Source of the recordings."""

    #: None: they are generated.
    trace: Path | None
    seed: int = 0
    #: None: as many as the trace has, or `GENERATED`.
    trajectories: int | None = None
    forever: bool = False

    def recordings(self) -> tuple[Iterable[Recording], int]:
        """Return the recordings to play, in order, and the default number of concurrent ones.

        They are a list unless they go on forever. Raises TraceError.
        """
        if self.trace is None:
            count = self.trajectories or GENERATED
            return self._generated(None if self.forever else count), count
        recorded = read_trace(self.trace)
        count = self.trajectories or len(recorded)
        if self.forever:
            return self._again_and_again(recorded), count
        return resample(recorded, count, seed=self.seed), count

    def _generated(self, count: int | None) -> Iterable[Recording]:
        made = (parse_recording(body, "generated") for body in generate(count, self.seed))
        return made if count is None else list(made)

    def _again_and_again(self, recorded: Sequence[Recording]) -> Iterator[Recording]:
        for turn in itertools.count(self.seed):
            yield from resample(recorded, len(recorded), seed=turn)


@dataclass(frozen=True, slots=True)
class Submission:
    """One action of a replay. Seconds are those after ``speed``."""

    trajectory: str
    #: Number of the step in its trajectory.
    number: int
    #: From the answer to the action before, or from the beginning of the trajectory.
    think_seconds: float
    duration_seconds: float
    #: Cores that its command keeps busy on average.
    cpu_cores: float
    #: Cores that it asks for; below 1 it is light.
    cores: float
    family: str | None
    #: Reserved on the node; None: not declared.
    memory_bytes: int | None

    @property
    def command(self) -> Sequence[str]:
        """Return the command that stands for the recorded one."""
        return burn_command(self.duration_seconds, self.cpu_cores)

    @property
    def asked_seconds(self) -> float:
        """Return how long the command takes on cores of its own, its start left out."""
        return asked_seconds(self.duration_seconds)

    @property
    def burnt_seconds(self) -> float:
        """Return the CPU seconds that the command takes, its start left out."""
        return burnt_seconds(self.duration_seconds, self.cpu_cores)

    @property
    def timeout_seconds(self) -> float:
        """Return the limit on its execution."""
        return max(TIMEOUT_LEAST_SECONDS, TIMEOUT_FACTOR * self.duration_seconds)


@dataclass(frozen=True)
class ReplayPlan:
    """Options of playing a recording."""

    task: str
    #: Makes the names of this replay's trajectories its own.
    run: str
    #: Think times and durations are divided by it.
    speed: float
    #: Cores to ask for, by the cores that were recorded as busy.
    cost: Cost
    #: Reserve each trajectory's recorded peak memory on its node.
    reserve_memory: bool = False

    def trajectory(self, number: int) -> str:
        """Return the name of the trajectory that plays recording ``number``."""
        return f"{self.run}-{number:05d}"

    def submissions(self, number: int, recording: Recording) -> Iterator[Submission]:
        """Yield the actions of recording ``number``, in order."""
        trajectory = self.trajectory(number)
        memory_bytes = recording.memory_bytes if self.reserve_memory else None
        for index, step in enumerate(recording.steps):
            yield Submission(
                trajectory=trajectory,
                number=index,
                think_seconds=step.think_seconds / self.speed,
                duration_seconds=step.duration_seconds / self.speed,
                cpu_cores=step.cpu_cores,
                cores=self.cost(step.cpu_cores),
                family=step.family or None,
                memory_bytes=memory_bytes,
            )
