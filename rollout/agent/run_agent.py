"""Run of an agent: the pure loop (`rollout.agent.loop`) with a model and tools, in RUN of a rollout.

Rules
1. It is a function of the rollout's log. Begun again after a crash, it asks and calls in the same order: stored turns are not
   sampled again, and calls have the keys ``TURN.CALL``, so their actions are found.
2. One run in a stage: its turns are all the turns of the log.
3. Every observation is cut to `LoopLimits.max_observation_characters`, and can be encoded, whatever the tool returned.
4. A conversation that has filled the model's context ends the loop, as `LoopEnd.CONTEXT`.
5. What the model did wrong is an observation. Errors of backends, and of calls that Tangram refuses, are raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rollout.agent.loop import (
    AgentCall,
    AgentLoop,
    AgentTools,
    AskModel,
    LoopEnd,
    LoopEnded,
    LoopLimits,
)
from rollout.agent.observations import cut_observation
from rollout.agent.tools import Tool, ToolRefused
from rollout.job import Job
from rollout.llm.model_calls import ChatSession
from rollout.llm.sampling_options import ContextOverflow
from rollout.tokens.chat_template import ChatMessage
from rollout.tokens.tool_calls import encodable


class Models(Protocol):
    """Gives a rollout its conversation (`rollout.handlers.model_access.ModelAccess`)."""

    async def session(
        self, job: Job, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> ChatSession:
        """Return the conversation of a rollout with its model; ``tools``: their schemas. Raises InvalidRequest."""


class AgentRun(NamedTuple):
    """How a run ended."""

    end: LoopEnd
    #: Arguments of the finishing call, or ``{"answer": text}``; empty for an end that is not proper.
    result: Mapping[str, Any]
    #: Answers of the model.
    iterations: int


async def run_agent(
    job: Job,
    models: Models,
    opening: Sequence[ChatMessage],
    tools: Sequence[Tool],
    limits: LoopLimits | None = None,
) -> AgentRun:
    """Run an agent to its end. ``opening``: the system's message and the question.

    Raises NoBackendAnswers, VersionSpanExceeded, InvalidRequest, CallRefused, OtherTurnStored; ValueError for two tools of one name.
    """
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise ValueError(f"two tools have one name: {', '.join(tool.name for tool in tools)}")
    finishing = tuple(tool.name for tool in tools if tool.finishing)
    bounds = limits or LoopLimits()
    loop = AgentLoop(
        opening, AgentTools(frozenset(by_name).difference(finishing), finishing), bounds
    )
    session = await models.session(job, [tool.schema for tool in tools] or None)
    while not isinstance(step := loop.step, LoopEnded):
        if isinstance(step, AskModel):
            await _ask(session, loop, step)
            continue
        turn = len(session.turns) - 1
        observations = [
            cut_observation(
                await _observation(job, by_name[call.name], call, f"{turn}.{number}"),
                bounds.max_observation_characters,
            )
            for number, call in enumerate(step.calls)
        ]
        loop.observed(observations)
    return AgentRun(step.end, encodable(dict(step.result)), loop.iterations)


async def _ask(session: ChatSession, loop: AgentLoop, step: AskModel) -> None:
    try:
        answer = await session.ask(step.messages)
    except ContextOverflow:
        loop.overflowed()
    else:
        loop.answered(answer.message, problem=answer.problem, cut=answer.cut)


async def _observation(job: Job, tool: Tool, call: AgentCall, key: str) -> str:
    try:
        observation = await tool.call(job, encodable(call.arguments), key)
    except ToolRefused as error:
        observation = str(error)
    return str(encodable(observation))
