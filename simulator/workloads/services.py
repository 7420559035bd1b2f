"""Calls to GPU services that share few chunks: open-loop arrivals, in bursts.

| parameter | value | source |
|---|---|---|
| gaps between calls | those of recorded LLM requests, sped up to the wished load | the trace |
| services | 10; 80 % of the calls go to as many of them as there are chunks, which change every 20 s | assumed |
| a call | 0.5 s on one GPU | assumed: a reward model |
| a restore | 0.77 s | measured: cold start of a process (`benchmarks.gpu_services`, 2 cores) |

``load`` is the share of all GPUs × time that calls alone need. A restore takes its chunk as well, so
what is used is more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, pairwise
from random import Random
from statistics import mean
from typing import Final, NamedTuple

from domain.action import Action, Kind
from domain.apis import CallSpec
from domain.elasticity import Elasticity
from domain.errors import InvalidRequest
from domain.ids import ActionId
from domain.resources import MILLI
from domain.services import PREFIX
from simulator.cluster import PROJECT
from simulator.gpus import GpuModel
from simulator.llm_trace import LlmRequest
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think

HOT_SHARE: Final = 0.8
#: More calls than anybody waits for.
MOST_CALLS: Final = 10_000_000
#: More GPUs make a call no faster.
_ALONE: Final = Elasticity(amdahl=0.0)


class Arrival(NamedTuple):
    """A call of a service."""

    at_seconds: float
    service: str


@dataclass(frozen=True)
class Arrivals:
    """Arrival times of calls and their services: a function of its fields alone."""

    requests: Sequence[LlmRequest]
    services: tuple[str, ...]
    gpus: int = 3
    load: float = 0.65
    seconds: float = 40.0
    call_seconds: float = 0.5
    burst_seconds: float = 20.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what has no arrivals, or no end of them."""
        if self.gpus < 1:
            raise InvalidRequest(f"services: gpus must be at least 1, not {self.gpus}")
        if len(self.requests) < 2 or len(self.services) < self.gpus:
            raise InvalidRequest("give at least two requests, and a service for each GPU")
        for name in ("load", "seconds", "call_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"services: {name} must be above 0, not {value!r}")
        if self.requests[0].at_seconds >= self.requests[-1].at_seconds:
            raise InvalidRequest("services: all requests come at once, so nothing says how often")
        if (calls := self.rate * self.seconds) > MOST_CALLS:
            raise InvalidRequest(f"services: these are {calls:g} calls; at most {MOST_CALLS:,}")

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.load * self.gpus / self.call_seconds

    def all(self) -> list[Arrival]:
        """Return the calls, in order."""
        rng = Random(self.seed)
        gaps = [after.at_seconds - before.at_seconds for before, after in pairwise(self.requests)]
        scale = 1.0 / (self.rate * mean(gaps))
        found: list[Arrival] = []
        at, hot, until = 0.0, self.services[: self.gpus], 0.0
        for gap in cycle(gaps):
            at += gap * scale
            if at > self.seconds:
                return found
            if at >= until:
                hot, until = tuple(rng.sample(self.services, self.gpus)), until + self.burst_seconds
            some = hot if rng.random() < HOT_SHARE else self.services
            found.append(Arrival(at, rng.choice(some)))
        return found


def waits(arrivals: Sequence[Arrival], call_seconds: float) -> list[float]:
    """Return the ACTs where each service has a GPU of its own and calls come one after another."""
    free: dict[str, float] = {}
    acts = []
    for at_seconds, service in arrivals:
        free[service] = max(at_seconds, free.get(service, 0.0)) + call_seconds
        acts.append(free[service] - at_seconds)
    return acts


def most_called(arrivals: Sequence[Arrival], count: int) -> list[Arrival]:
    """Return the calls that a static placement of ``count`` services would not refuse."""
    often = {name for name, _ in Counter(one.service for one in arrivals).most_common(count)}
    return [one for one in arrivals if one.service in often]


def models(
    names: Iterable[str], restore_seconds: float, gpu_memory_bytes: int
) -> dict[str, GpuModel]:
    """Return services of one GPU each, of which no two fit on one."""
    most = gpu_memory_bytes * 2 // 3
    return {
        name: GpuModel(
            name,
            weight_bytes=most,
            working_bytes=0,
            degrees=(1,),
            elasticity=_ALONE,
            # The restore is given as a whole: nothing of it depends on how much is copied.
            copy_bytes_per_second=math.inf,
            wake_seconds=restore_seconds,
        )
        for name in names
    }


@dataclass(frozen=True)
class ServiceCalls:
    """The workload: every arrival is a trajectory of one call."""

    arrivals: Sequence[Arrival]
    call_seconds: float = 0.5
    train_seconds: float = 0.0
    project: str = PROJECT
    task: str = "services"

    @cached_property
    def actions(self) -> int:
        """Number of calls."""
        return len(self.arrivals)

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the one step there is."""
        yield [
            SimulatedTrajectory(f"call{number:05d}", partial(self._play, number))
            for number in range(len(self.arrivals))
        ]

    def _play(self, number: int) -> Program:
        name, arrival = f"call{number:05d}", self.arrivals[number]
        yield Think(arrival.at_seconds)
        action = Action(
            id=ActionId(name), project=self.project, task=self.task, kind=Kind.CALL,
            cost={"gpu": (MILLI,)}, key="gpu", trajectory=name, family=arrival.service,
            call=CallSpec(f"{PREFIX}{arrival.service}"),
        )  # fmt: skip
        yield Act(action, ActionWork(self.call_seconds, key="gpu"))
