"""Access of handlers to the models of their rollouts: tokenizer, backends or fleet, and options, as the trainer's request states them.

    session = await models_of_process().session(job, tools=schemas)        # in RUN
    answer = await session.ask([{"role": "user", "content": job.request.instance["question"]}])

Lifetimes: `models_of_process` is one for a handler process, whose connections and probes all rollouts there share; it is made
with the first rollout that asks for it. A handler with other folders or limits makes a `ModelAccess` of its own.

Rules
1. ``sampling`` of the request has the options (`rollout.llm.sampling_options`), and ``custom_tokenizer`` or ``model`` names the
   tokenizer (`rollout.tokens.tokenizer_folders`). ``chat_template_kwargs`` are variables of the chat template.
2. Turns are stored by the job, and read back from its history: a session that begins again gets them in their order.
3. The date that a template names is that of the rollout's acceptance, in every attempt.
4. The tokenizers of a process are those in the folders that the operator allows (``TANGRAM_TOKENIZERS``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from domain.errors import InvalidRequest
from domain.rollouts import RolloutId
from rollout.handlers import process_options
from rollout.job import Job
from rollout.llm.engine_client import EngineClient
from rollout.llm.fleet_sampler import FleetSampler
from rollout.llm.model_calls import ChatSession, ModelCaller
from rollout.llm.pool_binding import PoolBinding, choose
from rollout.llm.sampler import BoundSampler, SamplerLimits, SamplesTurns, TurnSampler
from rollout.llm.sampling_options import sampling_options
from rollout.ports import Seat
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.segments import SampledTurn
from rollout.tokens.tokenizer_folders import TokenizerFolders
from rollout.tokens.turn_records import turn_record, turns_of

#: Of an id without a time, as tests have them.
_NO_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


class ModelAccess:
    """Models for the rollouts of one process."""

    def __init__(
        self,
        tokenizers: TokenizerFolders,
        client: EngineClient | None = None,
        limits: SamplerLimits | None = None,
    ) -> None:
        """``client``, ``limits``: others than the usual ones."""
        self._tokenizers = tokenizers
        self._client = client
        self._limits = limits
        self._sampler: TurnSampler | None = None

    async def caller(self, job: Job) -> ModelCaller:
        """Return what calls the model of a rollout; waits for a backend, of a pool of them. Raises InvalidRequest."""
        sampling = job.request.sampling
        options = sampling_options(sampling)
        name = sampling.get("custom_tokenizer") or options.model
        if not isinstance(name, str) or not name:
            raise InvalidRequest(
                "sampling: name the tokenizer", pointer="/sampling/custom_tokenizer"
            )
        variables = sampling.get("chat_template_kwargs") or {}
        if not isinstance(variables, Mapping):
            raise InvalidRequest(
                "sampling: chat_template_kwargs is an object",
                pointer="/sampling/chat_template_kwargs",
            )
        encoder = PromptEncoder(
            self._tokenizers.get(name), at=accepted_at(job.rollout.id), options=variables
        )
        return ModelCaller(
            await self._sampler_of(job),
            encoder,
            options,
            _storing(job),
            sample=job.rollout.sample,
            max_version_span=job.rollout.max_version_span,
            turns=turns_of(job.history),
        )

    async def session(
        self, job: Job, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> ChatSession:
        """Return the conversation of a rollout with its model; ``tools``: their schemas. Raises InvalidRequest."""
        return ChatSession(await self.caller(job), tools)

    def _shared_sampler(self) -> TurnSampler:
        if self._sampler is None:
            self._sampler = TurnSampler(self._client or EngineClient(), limits=self._limits)
        return self._sampler

    async def _sampler_of(self, job: Job) -> SamplesTurns:
        if job.rollout.fleet:
            return FleetSampler(job, self._limits)
        return BoundSampler(self._shared_sampler(), await self._binding(job))

    async def _binding(self, job: Job) -> PoolBinding:
        async def backends(wait: bool) -> Sequence[Seat]:
            return await job.backends(wait=wait)

        seat = job.seat()
        if seat is None:  # the backend of the lease was removed, or RUN takes no lease
            seat = choose(job.rollout.id, await backends(True), ())
        health = self._shared_sampler().health
        now = asyncio.get_running_loop().time
        return PoolBinding(job.rollout.id, seat, backends, health, now, job.seat)


def accepted_at(rollout: RolloutId) -> datetime:
    """Return the time in the id of a rollout."""
    digits = rollout.removeprefix("rol_")[:12]
    try:
        return datetime.fromtimestamp(int(digits, 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return _NO_TIME


def _storing(job: Job) -> Any:
    async def store(turn: SampledTurn) -> None:
        await job.turn(turn_record(turn))

    return store


_of_process: ModelAccess | None = None


def models_of_process() -> ModelAccess:
    """Return the models that all handlers of this process share; call it in the event loop of the rollouts."""
    if _of_process is None:
        folders = [Path(folder) for folder in process_options.present().tokenizers]
        share_models(ModelAccess(TokenizerFolders(folders)))
    assert _of_process is not None
    return _of_process


def share_models(models: ModelAccess | None) -> None:
    """Let `models_of_process` return these; None: others, made when they are asked for."""
    global _of_process  # one for the process
    _of_process = models
