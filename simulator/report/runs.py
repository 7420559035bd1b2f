"""Simulate many cases, each once, over several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from simulator.compare import run
from simulator.report.cases import Case, Inputs, Scale, scene
from simulator.result import Result

Results = Mapping[Case, Result]
#: Called with how many cases are done, and how many there are.
Progress = Callable[[int, int], None]

#: What a worker process simulates with; sent once, not with every case.
_worker: dict[str, tuple[Inputs, Scale]] = {}


def simulate(
    cases: Iterable[Case],
    inputs: Inputs,
    scale: Scale,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Results:
    """Return case → result. The largest cases go first, so that no worker is left with one."""
    order = sorted(set(cases), key=lambda case: (-case.batch * case.rl_steps, repr(case)))
    inputs = inputs.at(scale)
    results: dict[Case, Result] = {}
    if jobs == 1:
        _begin(inputs, scale)
        found = map(_one, order)
        _collect(order, found, results, progress)
        return results
    with ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=_begin, initargs=(inputs, scale)
    ) as pool:
        _collect(order, pool.map(_one, order), results, progress)
    return results


def _collect(
    order: list[Case],
    found: Iterable[Result],
    results: dict[Case, Result],
    progress: Progress | None,
) -> None:
    for case, result in zip(order, found, strict=True):
        results[case] = result
        if progress is not None:
            progress(len(results), len(order))


def _begin(inputs: Inputs, scale: Scale) -> None:
    _worker["inputs"] = inputs, scale


def _one(case: Case) -> Result:
    inputs, scale = _worker["inputs"]
    return run(scene(case, inputs, scale), case.policy).result
