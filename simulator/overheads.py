"""Overheads of the path of an action, in seconds, each with its source.

Measured means: on the development machine (2 shared cores), see README "Results". One noop alone
takes 7 ms from submission to answer (`benchmarks.noop`, p50); the four hops below and the pass of
the loop share that time by assumption, since the parts were not measured apart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Final

from domain.errors import InvalidRequest

#: Docker, measured: create and start a container; `exec` of a command in it (docs/decisions/0006).
DOCKER_ENVIRONMENT_SECONDS: Final = 0.53
DOCKER_EXEC_SECONDS: Final = 0.084


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds of each hop. `NONE` makes hand-computed cases exact."""

    #: Trainer → gateway → inbox of the loop. Counts as waiting.
    submit_seconds: float = 0.002
    #: The loop decides and commits; whatever arrives meanwhile is taken by the next pass.
    pass_seconds: float = 0.001
    #: Grant committed → the node has spawned the work.
    start_seconds: float = 0.0015
    #: The node's report → inbox of the loop.
    report_seconds: float = 0.001
    #: Finish committed → the trainer has it.
    answer_seconds: float = 0.0015
    #: First action of a trajectory on its node. Assumed: the workspace of the process backend. A
    #: Docker container was measured at 0.53 s (create and start).
    environment_seconds: float = 0.005
    #: The node removes an environment. Assumed; Docker: 0.18 s, measured.
    remove_seconds: float = 0.005

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = getattr(self, field.name)
            if not (isfinite(seconds) and seconds >= 0):
                raise InvalidRequest(f"{field.name} must be a number ≥ 0, not {seconds!r}")


NONE = Overheads(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
