"""Real runs of growing contexts: the same steps by the selector and at each fixed degree, on servers of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Final, NamedTuple

from benchmarks.parallelism.servers import DirectProbe
from domain.selectors import Parallelism, SelectorSpec, StageLoad
from managers.gpu.profiling import lacks_memory, request, shares
from scheduler.core.residency.parallelism import ParallelismStanding, ProfileTable, choose

_CALL_SECONDS: Final = 600.0


class RealRun(NamedTuple):
    """One run of all steps; it ends with the first one that lacks memory."""

    seconds: float
    #: Of each step, a change of the degree included.
    steps: Sequence[float]
    degrees: Sequence[str]
    #: Evidence; empty: there was memory for all steps.
    lacked_memory: str


async def real_run(
    probe: DirectProbe, spec: SelectorSpec, table: ProfileTable, contexts: Sequence[int],
    responses: int, tokens: int, fixed: Parallelism | None = None,
) -> RealRun:  # fmt: skip
    """Let ``responses`` decode ``tokens`` tokens up to each of ``contexts``; ``fixed`` None: the selector chooses."""
    standing, steps, degrees = ParallelismStanding(), [], []
    first = fixed
    for n, context in enumerate(contexts):
        before = contexts[max(0, n - 1)]
        degree = fixed
        if degree is None:
            load = StageLoad(
                before, context_longest=before, responses=responses, tokens=responses * tokens
            )
            choice = choose(spec, table, load, standing)
            standing, degree = choice.standing, choice.parallelism
            assert degree is not None, choice.why
            first = first or degree
        if n == 0:
            # The first degree is there when a run begins, whichever it is.
            await probe.switch(degree.instance_gpus)
        began = monotonic()
        answers = await asyncio.gather(
            *(
                probe.call(degree.instance_gpus, request(context, rows, tokens), _CALL_SECONDS)
                for rows in shares(responses, degree.dp)
            )
        )
        steps.append(monotonic() - began)
        degrees.append(str(degree))
        evidence = next(filter(None, map(lacks_memory, answers)), "")
        if evidence:
            return RealRun(sum(steps), steps, degrees, evidence)
        if wrong := [each for each in answers if each.status != 200]:
            raise RuntimeError(f"{degree} at {context}: {wrong[0]}")
    return RealRun(sum(steps), steps, degrees, "")
