"""Native calls of a rollout worker: the calls of ``/api/v1``, made in its process for the project of a rollout.

Rules
1. A call passes the handler and the checks of its native route (`scheduler.runtime.gateway.native_calls`), with the
   scopes to read and to submit, in the project of the rollout and no other.
2. Calls that may be repeated are repeated while a part of the system does not answer, up to `PATIENCE_SECONDS`: an
   action is submitted under a key, so a repetition finds it.
3. An action of a rollout has the name of the rollout in its metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import redis

from contract.requests import ActionRequest
from contract.responses import ActionResponse
from domain.action import Action, ActionState
from domain.codec import encode
from domain.errors import CapacityError, Unavailable
from domain.events import ActionCancelRequested, Event
from domain.ids import ActionId
from domain.manifest import read
from domain.principals import Principal, Scope
from domain.project_limits import loads_of
from domain.rollouts import Rollout
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.actions import submission
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.route_table import Handler
from scheduler.runtime.redis.facade_records import FacadeRecords
from scheduler.runtime.rollouts.chat_tokens import SECRET_OF, ChatTokens
from scheduler.runtime.stored_actions import with_stored_inputs

log = logging.getLogger(__name__)

#: A call is repeated for so long while Redis, the loop or a node does not answer.
PATIENCE_SECONDS: Final = 300.0
FIRST_PAUSE_SECONDS: Final = 0.1
MOST_PAUSE_SECONDS: Final = 3.0
#: Longest wait of one look at an action.
LOOK_SECONDS: Final = 60.0
_SCOPES: Final = frozenset({Scope.READ, Scope.SUBMIT})

T = TypeVar("T")
Pause = Callable[[float], Awaitable[object]]


class WorkerCalls:
    """The native calls of one worker process."""

    def __init__(
        self,
        context: GatewayContext,
        handlers: Mapping[str, Handler],
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.context = context
        self._handlers = handlers
        self._pause = pause

    def native(self, rollout: Rollout) -> NativeCalls:
        """Return the native calls in the project of a rollout."""
        principal = principal_of(rollout)
        request = _request(rollout.project)
        return NativeCalls(self.context, self._handlers, _refuse, rollout.door, request, principal)

    async def send(self, event: Event) -> None:
        """Append an event to the inbox; it may arrive twice. Raises Unavailable."""
        await self.patiently(partial(self.context.submitter.append, [encode(event)]))

    async def submit(self, rollout: Rollout, key: str, members: Mapping[str, Any]) -> str:
        """Submit an action once per ``key`` and return its id. Raises InvalidRequest, CapacityError."""
        return await self.patiently(partial(self._submit, rollout, key, members))

    async def settled(
        self, rollout: Rollout, action_id: str, seconds: float = LOOK_SECONDS
    ) -> ActionResponse:
        """Return an action: finished, a held lease, or as it is after ``seconds``. Raises NotFound."""
        request, principal = _request(rollout.project), principal_of(rollout)
        look = partial(self.context.find, request, principal, action_id, seconds)
        return await self.patiently(look)

    async def ended(self, rollout: Rollout, action_id: str) -> ActionResponse:
        """Return an action once it is finished, a lease too. Raises NotFound.

        An end that the journal had before this call is found after `LOOK_SECONDS`.
        """
        while True:
            future = self.context.tail.finish_of(action_id)
            try:
                await asyncio.wait({future}, timeout=LOOK_SECONDS)
                found = future.result() if future.done() else None
                view = found or await self.settled(rollout, action_id, 0.0)
                if view.state is ActionState.FINISHED:
                    return view
            finally:
                self.context.tail.discard(action_id, future)

    async def cancel(self, rollout: Rollout, action_id: str, reason: str) -> None:
        """Cancel an action; one that is finished is not changed. Raises NotFound."""
        view = await self.settled(rollout, action_id, 0.0)
        if view.state is not ActionState.FINISHED:
            await self.send(
                ActionCancelRequested(
                    action_id=ActionId(action_id), project=view.project, reason=reason
                )
            )

    async def agent_token(self, rollout: Rollout, trajectory: str) -> str:
        """Return the token of the agent in a trajectory. Raises Unavailable."""
        records = FacadeRecords(
            self.context.client, self.context.keys, SECRET_OF, self.context.confirmed
        )
        return ChatTokens(await self.patiently(records.secret)).token(rollout.project, trajectory)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that may be repeated. Raises what it raises last."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                return await call()
            except (CapacityError, HttpError, redis.RedisError) as error:
                if not _is_passing(error) or loop.time() >= until:
                    raise
                log.warning("a call of a rollout waits: %s", error)
            await self._pause(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def _submit(self, rollout: Rollout, key: str, members: Mapping[str, Any]) -> str:
        context, action = self.context, await self._action(rollout, members)
        name = context.keys.idempotency(action.project, f"\0rollout/{rollout.id}/{key}")
        before = await context.submitter.append(
            [submission(action)],
            key=name,
            remember=action.id.encode(),
            loads=loads_of([action]),
        )
        return action.id if before is None else before.decode()

    async def _action(self, rollout: Rollout, members: Mapping[str, Any]) -> Action:
        given = {
            "task": rollout.task,
            **members,
            "project": rollout.project,
            "metadata": {**members.get("metadata", {}), "rollout": rollout.id},
        }
        payload = read(ActionRequest, given)
        context = self.context
        principal = principal_of(rollout)
        action = await context.admitted(
            lambda: context.admission.action(payload, principal, rollout.door)
        )
        return await with_stored_inputs(action, context.bodies)


def _is_passing(error: Exception) -> bool:
    """Whether a repetition may succeed: a part does not answer, or a limit of the project is reached."""
    if isinstance(error, HttpError):
        return error.status in (429, 503)
    return isinstance(error, (Unavailable, redis.RedisError)) or (
        isinstance(error, CapacityError) and not isinstance(error, HttpError)
    )


def principal_of(rollout: Rollout) -> Principal:
    """Return who makes the calls of a rollout: bound to its project."""
    return Principal("rollout worker", rollout.project, _SCOPES)


def _request(project: str) -> HttpRequest:
    """Return the request that native calls are made for; its client never disconnects."""

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    query = urlencode({"project": project})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/rollouts",
        "headers": [],
        "query_string": query.encode(),
    }
    return HttpRequest(scope, receive)


async def _refuse(*_: object) -> ActionResponse:
    raise AssertionError("a rollout worker submits and waits; it does not run")
