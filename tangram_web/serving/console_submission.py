"""Submissions of pages, passed from the threads of Django to the gateway of this process."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final

import msgspec

from contract.requests import DOOR
from domain.errors import TangramError, Unavailable
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.actions import Actions
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse, problem_of
from tangram_web.lib.submissions import CONSOLE, PageSubmission, SubmissionAnswer

#: A page waits for so long.
PATIENCE_SECONDS: Final = 10.0


class ConsoleSubmission:
    """Submits in the event loop of the gateway, as an account that is signed in."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._actions = Actions(context)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Take submissions; called in the event loop of the gateway."""
        self._loop = asyncio.get_running_loop()

    def submit(self, asked: PageSubmission) -> SubmissionAnswer:
        """Submit an action from another thread. Raises Unavailable; then it may be submitted all the same."""
        if self._loop is None:
            raise Unavailable("the web process is starting")
        answering = asyncio.run_coroutine_threadsafe(self._answer(asked), self._loop)
        try:
            return answering.result(PATIENCE_SECONDS)
        except TimeoutError:
            answering.cancel()
            raise Unavailable(f"no answer within {PATIENCE_SECONDS:g} s") from None

    async def _answer(self, asked: PageSubmission) -> SubmissionAnswer:
        request = _request(asked)
        try:
            await self._context.start()
            response = await self._actions.submit(request, asked.principal)
        except TangramError as error:
            response = problem_of(error, request)
        return _answer_of(response)


def _answer_of(response: HttpResponse) -> SubmissionAnswer:
    return SubmissionAnswer(response.status, msgspec.json.decode(response.content))


def _request(asked: PageSubmission) -> HttpRequest:
    """Return the request of the API that a page stands for."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": asked.body, "more_body": False}

    headers = [
        (b"idempotency-key", asked.key.encode()),
        (b"x-request-id", asked.request_id.encode()),
    ]
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/actions", "headers": headers,
        "query_string": b"", DOOR: CONSOLE,
    }  # fmt: skip
    return HttpRequest(scope, receive)
