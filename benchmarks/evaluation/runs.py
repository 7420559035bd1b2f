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
#: Called with each case that was simulated now or before.
Watch = Callable[[Case, Timed], None]

#: What a worker process simulates with; sent once, not with every case.
_worker: dict[str, tuple[Inputs, Scale]] = {}


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
    inputs = inputs.at(scale)
    sizes = _sizes(set(cases), inputs, scale)
    results: dict[Case, Result] = {}
    done, every = 0, sum(sizes.values())

    def take(case: Case, timed: Timed) -> None:
        nonlocal done
        results[case] = timed.result
        done += sizes[case]
        if watch is not None:
            watch(case, timed)

    def tell() -> None:
        if progress is not None:
            progress(Done(len(results), len(sizes), done / every))

    for case in sizes:
        if kept is not None and (before := kept.find(case)) is not None:
            take(case, before)
    tell()
    left = [case for case in sizes if case not in results]
    with closing(_simulated(left, inputs, scale, jobs)) as simulated:
        for case, timed in simulated:
            if kept is not None:
                kept.keep(case, timed)
            take(case, timed)
            tell()
    return results


def _sizes(cases: Iterable[Case], inputs: Inputs, scale: Scale) -> dict[Case, int]:
    """Return how many actions each case has, the largest first."""
    known: dict[Case, int] = {}
    sizes = {}
    for case in cases:
        same = replace(case, policy="", rewards="medium", declared_ratio=1.0, declared_share=None,
                       think_ratio=1.0, jitter_sigma=0.0, depth=None)  # fmt: skip
        if same not in known:
            known[same] = max(1, scene(case, inputs, scale).workload.actions)
        sizes[case] = known[same]
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], repr(item[0]))))


def _simulated(
    cases: Sequence[Case], inputs: Inputs, scale: Scale, jobs: int
) -> Generator[tuple[Case, Timed], None, None]:
    """Yield each case with what it gave, as they end. Closed before, it ends those that run."""
    if jobs == 1 or len(cases) < 2:
        _begin(inputs, scale)
        yield from ((case, _one(case)) for case in cases)
        return
    with worker_processes(jobs, _begin, inputs, scale) as workers:
        running = {workers.submit(_one, case): case for case in cases}
        for each in as_completed(running):
            yield running[each], each.result()


def _begin(inputs: Inputs, scale: Scale) -> None:
    _worker["inputs"] = inputs, scale


def _one(case: Case) -> Timed:
    inputs, scale = _worker["inputs"]
    return run(scene(case, inputs, scale), case.policy)
