"""Generations of a worker's rollouts: calls of fleets, made by the router of generations in the worker's process.

Rules
1. A generation is an action of kind ``call`` in the trajectory of its stage, with the rollout's group, batch and priority. The
   worker's process is its gateway: prompt and tokens pass between it and the worker of the fleet alone (docs/decisions/0181).
2. It is replay-safe: where a worker of the fleet fails before its answer is whole, the router has it routed again. What still ends
   without an answer is reported as such, and sampled again.
3. A call that is cancelled, and an end that the scheduler decides, close the connection to the worker of the fleet, which ends the
   generation there.
4. A reason names workers of the fleet and no addresses: rollouts show it to readers who may not know them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final

from contract.requests import ActionRequest
from domain.action import Action, Outcome
from domain.errors import CapacityError, InvalidRequest, TangramError
from domain.fleets import GenerationSpec
from domain.manifest import read
from domain.rollouts import Rollout
from rollout.ports import FleetAnswer, GenerationBegun, GenerationRequest
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest, forwarded
from scheduler.runtime.fleet_router.router import GenerationEnd
from scheduler.runtime.gateway.http import ClientGone, HttpError
from scheduler.runtime.rollouts.worker_calls import WorkerCalls, principal_of

#: Least time that a generation gets.
MIN_SECONDS: Final = 1.0
_ADDRESS: Final = re.compile(r" at https?://[^\s,;]+")


class FleetGenerations:
    """The generations of one rollout worker."""

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls

    async def engine(self, fleet: str) -> str:
        """Return the engine of a fleet; empty: it is not declared. Raises Unavailable."""
        found = await self._calls.patiently(partial(self._fleet, fleet))
        return "" if found is None else found.engine.value

    async def generate(
        self, rollout: Rollout, name: str, asked: GenerationRequest, begun: GenerationBegun
    ) -> FleetAnswer:
        """Make a generation in trajectory ``name``; return how it ended."""
        try:
            return await self._calls.patiently(partial(self._once, rollout, name, asked, begun))
        except (CapacityError, HttpError) as error:
            return FleetAnswer(failed=str(error))

    async def _fleet(self, fleet: str) -> FleetCapacity | None:
        context = self._calls.context
        if fleet not in context.admission.view.fleets:
            await context.refresh()
        return context.admission.view.fleets.get(fleet)

    async def _once(
        self, rollout: Rollout, name: str, asked: GenerationRequest, begun: GenerationBegun
    ) -> FleetAnswer:
        fleet = await self._fleet(rollout.fleet)
        if fleet is None:
            return FleetAnswer(failed=f"fleet {rollout.fleet!r} is not declared any more")
        body = asked.body if asked.path == "/generate" else {**asked.body, "model": rollout.fleet}
        request = forwarded(body, None, asked.path, fleet.engine, fleet.source)
        try:
            action = await self._action(rollout, name, asked, request)
        except InvalidRequest as error:
            return FleetAnswer(failed=str(error))
        await begun(action.id)
        answer = _WholeAnswer()
        end = await self._served(action, request, answer)
        if end.outcome is not Outcome.COMPLETED:
            why = _ADDRESS.sub("", end.detail) or f"the generation is {end.outcome}"
            return FleetAnswer(failed=why, execution_seconds=end.execution_seconds)
        return FleetAnswer(
            answer.status,
            bytes(answer.content),
            answer.headers.get(b"x-tangram-worker", b"").decode(),
            int(answer.headers.get(b"x-tangram-weights-version", b"0")),
            end.execution_seconds,
        )

    async def _action(
        self, rollout: Rollout, name: str, asked: GenerationRequest, request: ForwardedRequest
    ) -> Action:
        limit = asked.timeout_seconds
        members: dict[str, Any] = {
            "project": rollout.project,
            "task": rollout.task,
            "trajectory": name,
            "group": rollout.group,
            "priority": rollout.priority,
            "kind": "call",
            "call": {"target": f"fleet:{rollout.fleet}", "path": asked.path, "stream": False},
            "timeout_seconds": None if limit is None else max(limit, MIN_SECONDS),
            "replay_safe": True,
            "metadata": {"rollout": rollout.id},
        }
        given = {key: value for key, value in members.items() if value is not None}
        payload, context = read(ActionRequest, given), self._calls.context
        spec = GenerationSpec(rollout.batch, rollout.batch_size, request.prompt_tokens)
        return await context.admitted(
            lambda: context.admission.action(payload, principal_of(rollout), rollout.door, spec)
        )

    async def _served(
        self, action: Action, request: ForwardedRequest, answer: _WholeAnswer
    ) -> GenerationEnd:
        """Have the router serve a generation; a cancelled call leaves it as a client that disconnects."""
        left = asyncio.Event()
        serving = asyncio.ensure_future(
            self._calls.context.router.serve(action, request, answer, _until(left), {})
        )
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            left.set()
            serving.add_done_callback(_retrieved)
            raise
        except ClientGone as error:  # the router's process ends
            raise TangramError(f"{action.id} was left") from error


class _WholeAnswer:
    """Takes the messages of an answer, and keeps it whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.content = bytearray()

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.content += message.get("body", b"")


def _until(left: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def gone() -> None:
        await left.wait()

    return gone


def _retrieved(serving: asyncio.Future[GenerationEnd]) -> None:
    """Take the error of a generation that was left."""
    if not serving.cancelled():
        serving.exception()
