"""Handler ``noop``: a rollout without environment and without language model, for health checks, benchmarks and tests of trainers.

Its instance declares what happens, else its options do, each with a number or a list by sample:

    reward    null: none [1]
    seconds   of RUN [0]
    turns     that RUN stores, of one token each; a rollout that is parked continues at the last one [0]
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rollout.handlers.base import AgentHandler, Job
from rollout.ports import Record


class NoopHandler(AgentHandler):
    """Takes the declared time, and returns the declared reward."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        seconds, turns = float(_declared(job, "seconds", 0.0)), int(_declared(job, "turns", 0))
        pieces = max(1, turns)
        for number in range(sum(record.kind == "turn" for record in job.history), pieces):
            if seconds > 0:
                await asyncio.sleep(seconds / pieces)
            if turns:
                await job.turn(_turn(number))
        return None

    async def eval(self, job: Job) -> Any:
        return _declared(job, "reward", 1.0)


def _declared(job: Job, name: str, default: float) -> Any:
    """Return what the instance declares, else the options, for this sample."""
    request = job.request
    found = request.instance.get(name, request.options.get(name, default))
    return found[job.rollout.sample % len(found)] if isinstance(found, list) and found else found


def _turn(number: int) -> Record:
    """Return a turn of one sampled token, which continues the turn before."""
    # Numpy is not imported for rollouts without turns.
    import numpy as np

    from rollout.tokens.sampled import SampledTokens
    from rollout.tokens.segments import SampledTurn
    from rollout.tokens.turn_records import turn_record

    return turn_record(
        SampledTurn(
            context=np.array([1], np.int32),
            tokens=SampledTokens(np.array([2], np.int32), np.array([-0.5], np.float32), "stop"),
            weights_version=1,
            backend="",
            follows=number - 1 if number else None,
            message={"role": "assistant", "content": "noop"},
        )
    )
