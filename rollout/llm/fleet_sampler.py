"""Sampling of one turn from a fleet: a generation, which the fleet places on one of its workers.

Lifetimes: one sampler for each rollout that runs on a fleet, made with its first call of the model.

Rules
1. The request and its answer are those of the engine's dialect (`rollout.llm.dialects`), with the same checks as at a registered
   backend: ids, log-probabilities and the prompt. Nothing of a response is used before all of it is checked.
2. A generation without an answer, and one whose answer is wrong, costs one of the attempts and is sampled again. The fleet chooses the
   worker each time: this sampler avoids none. Refusals for being busy are waited for.
3. Tokens carry the version of the weights that their worker had when the generation was granted, as probed; 0 where the engine names
   none. Tokens outside of ``max_version_span`` raise `VersionSpanExceeded`, and are not used.
4. The context of the engine is not known here: the trainer's ``max_context_tokens`` bounds a response, else the engine refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from domain.fleets import FleetEngine
from domain.rollouts import Rollout
from rollout.llm.dialects import DIALECTS, AskedFor, Dialect, MalformedAnswer
from rollout.llm.engine_client import BackendBusy, BackendFailed, refusal_of
from rollout.llm.sampler import (
    NoBackendAnswers,
    SampleRequest,
    SamplerLimits,
    TurnSample,
    check_version,
    pause_after,
)
from rollout.ports import FleetAnswer, Seat
from rollout.tokens.sampled import SampledTokens

#: Engine → the dialect of its requests for tokens.
_SPEAKS: Final = {
    FleetEngine.VLLM: "vllm",
    FleetEngine.SGLANG: "sglang",
    FleetEngine.TORCH: "openai",
    FleetEngine.OPENAI: "openai",
}


class Generates(Protocol):
    """What makes generations of a rollout's fleet (`rollout.job.Job`)."""

    @property
    def rollout(self) -> Rollout:
        """The rollout."""

    async def engine(self) -> str:
        """Return the engine of its fleet; empty: it is not declared any more."""

    async def generate(self, path: str, body: Mapping[str, Any]) -> FleetAnswer:
        """Make a generation, and return how it ended."""


class FleetSampler:
    """Samples the turns of one rollout from its fleet."""

    def __init__(
        self,
        job: Generates,
        limits: SamplerLimits | None = None,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._job = job
        self._limits = limits or SamplerLimits()
        self._pause = pause
        self._dialect: Dialect | None = None

    async def sample(self, request: SampleRequest) -> TurnSample:
        """Return the tokens of one turn.

        Raises NoBackendAnswers, VersionSpanExceeded, ContextOverflow, RequestRefused.
        """
        failures: list[str] = []
        busy = 0
        while len(failures) < self._limits.attempts:
            answer = FleetAnswer()
            try:
                dialect = await self._speaks()
                most = request.options.room(len(request.prompt_ids))
                answer = await self._generation(dialect, request, most)
                found = _tokens(dialect, answer, request, most)
            except BackendBusy as error:
                busy += 1
                if busy % self._limits.busy:
                    await self._pause(error.retry_after_seconds)
                    continue
                failures.append(_failure(answer, error))
            except (BackendFailed, MalformedAnswer) as error:
                failures.append(_failure(answer, error))
            else:
                check_version(answer.weights_version, request)
                return TurnSample(found, self._seat(answer))
            if len(failures) < self._limits.attempts:
                await self._pause(pause_after(len(failures)))
        raise NoBackendAnswers(
            f"{len(failures)} generations of fleet {self._job.rollout.fleet!r} failed; the last ones:"
            f" {'; '.join(failures[-3:])}"
        )

    async def _generation(self, dialect: Dialect, request: SampleRequest, most: int) -> FleetAnswer:
        # The fleet names the model that its workers know.
        wire = dialect.request(request.prompt_ids, request.options, most, "")
        return await self._job.generate(wire.path, wire.body)

    async def _speaks(self) -> Dialect:
        if self._dialect is None:
            engine = await self._job.engine()
            if not engine:
                raise BackendFailed(f"fleet {self._job.rollout.fleet!r} is not declared any more")
            self._dialect = DIALECTS[_SPEAKS[FleetEngine(engine)]]
        return self._dialect

    def _seat(self, answer: FleetAnswer) -> Seat:
        """Return where a turn was sampled; the worker takes no seat of the rollout."""
        return Seat(self._job.rollout.llm, answer.worker, "", answer.weights_version)


def _tokens(
    dialect: Dialect, answer: FleetAnswer, request: SampleRequest, most: int
) -> SampledTokens:
    """Return the tokens of an answer. Raises BackendFailed, MalformedAnswer, RequestRefused, ContextOverflow."""
    if answer.failed:
        raise BackendFailed(answer.failed)
    if answer.status != 200:
        raise refusal_of(answer.status, answer.content, {})
    options = request.options
    asked = AskedFor(request.prompt_ids, most, request.vocabulary_size, options.need_logprobs)
    return dialect.read(answer.content, asked)


def _failure(answer: FleetAnswer, error: Exception) -> str:
    return f"worker {answer.worker}: {error}" if answer.worker else str(error)
