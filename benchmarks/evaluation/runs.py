"""Simulate many cases, each once, over several processes.

The largest cases go first, so that no worker is left with one at the end. What is done is counted in
actions, not in cases: some have a hundred times as many as others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from benchmarks.evaluation.cases import Case, Inputs, Scale, scene
from benchmarks.evaluation.checkpoint import Kept
from simulator.compare import Timed, run
from simulator.result import Result
from simulator.worker_processes import worker_processes

Results = Mapping[Case, Result]


class Done(NamedTuple):
    """Progress of a report."""

    cases: int
    of: int
    #: Of all actions.
    share: float


Progress = Callable[[Done], None]
#: Called once, before anything is simulated, with the simulations that are left and the actions of each.
Planned = Callable[["Mapping[Job, int]"], None]
#: Called with each case that was simulated now or before.
Watch = Callable[[Case, Timed], None]

#: What a worker process simulates with, by scale; sent once, not with every case.
_worker: dict[Scale, Inputs] = {}


class Job(NamedTuple):
    """One simulation: a case at a scale."""

    scale: Scale
    case: Case


def simulate(
    cases: Iterable[Case],
    inputs: Inputs,
    scale: Scale,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    kept: Kept | None = None,
    watch: Watch | None = None,
) -> Results:
    """Return case → result; ``kept``: those that were simulated before, and now."""
    known = {} if kept is None else {scale: kept}
    every = {scale: cases}
    found = simulate_all(every, inputs, jobs=jobs, progress=progress, kept=known, watch=watch)
    return found[scale]


def simulate_all(
    cases: Mapping[Scale, Iterable[Case]],
    inputs: Inputs,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    kept: Mapping[Scale, Kept],
    watch: Watch | None = None,
    planned: Planned | None = None,
) -> dict[Scale, Results]:
    """Return scale → case → result, the largest simulations of all scales first."""
    scaled = {scale: inputs.at(scale) for scale in cases}
    sizes = sizes_of(cases, inputs)
    results: dict[Scale, dict[Case, Result]] = {scale: {} for scale in cases}
    done, every = 0, sum(sizes.values())

    def take(job: Job, timed: Timed) -> None:
        nonlocal done
        results[job.scale][job.case] = timed.result
        done += sizes[job]
        if watch is not None:
            watch(job.case, timed)

    def tell() -> None:
        if progress is not None:
            count = sum(map(len, results.values()))
            progress(Done(count, len(sizes), done / every))

    for job in sizes:
        if job.scale in kept and (before := kept[job.scale].find(job.case)) is not None:
            take(job, before)
    tell()
    left = [job for job in sizes if job.case not in results[job.scale]]
    if planned is not None:
        planned({job: sizes[job] for job in left})
    with closing(_simulated(left, scaled, jobs)) as simulated:
        for job, timed in simulated:
            if job.scale in kept:
                kept[job.scale].keep(job.case, timed)
            take(job, timed)
            tell()
    return dict(results)


def sizes_of(cases: Mapping[Scale, Iterable[Case]], inputs: Inputs) -> dict[Job, int]:
    """Return how many actions each simulation has, the largest first."""
    found: dict[Job, int] = {}
    for scale, some in cases.items():
        known = _sizes(set(some), inputs.at(scale), scale)
        found |= {Job(scale, case): size for case, size in known.items()}
    return dict(sorted(found.items(), key=lambda item: (-item[1], repr(item[0]))))


def _sizes(cases: Iterable[Case], inputs: Inputs, scale: Scale) -> dict[Case, int]:
    known: dict[Case, int] = {}
    sizes = {}
    for case in cases:
        same = replace(case, policy="", rewards="medium", declared_ratio=1.0, declared_share=None,
                       think_ratio=1.0, jitter_sigma=0.0, depth=None)  # fmt: skip
        if same not in known:
            known[same] = max(1, scene(case, inputs, scale).workload.actions)
        sizes[case] = known[same]
    return sizes


def _simulated(
    jobs: Sequence[Job], inputs: Mapping[Scale, Inputs], at_once: int
) -> Generator[tuple[Job, Timed], None, None]:
    """Yield each simulation with what it gave, as they end. Closed before, it ends those that run."""
    if at_once == 1 or len(jobs) < 2:
        _begin(inputs)
        yield from ((job, _one(job)) for job in jobs)
        return
    with worker_processes(at_once, _begin, inputs) as workers:
        running = {workers.submit(_one, job): job for job in jobs}
        for each in as_completed(running):
            yield running[each], each.result()


def _begin(inputs: Mapping[Scale, Inputs]) -> None:
    _worker.update(inputs)


def _one(job: Job) -> Timed:
    return run(scene(job.case, _worker[job.scale], job.scale), job.case.policy)
