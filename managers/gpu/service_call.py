"""One attempt at a call of a GPU service on one chunk: restore, request, release."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import httpcore
import msgspec
from msgspec.structs import replace

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.apis import ApiConfig, CallResult, CallSpec, Reach, ServiceResult
from domain.events import ChunkReport
from domain.fleets import TokenUsage
from domain.ports import ResponseStreams, RunOrder, RunReport
from domain.services import Engine, GpuService
from managers.common.api_calls.exchange import CallAttempt, exchange
from managers.gpu.engines import Server
from managers.gpu.service_host import PLACEMENT_ERRORS, ServiceHost, is_failed_placement

#: Longest time for one call of an action that declares no limit.
CALL_SECONDS: Final = 3600.0
#: Bytes of an answer that are kept.
ANSWER_BYTES: Final = 2**20
#: As `managers.gpu.torch_worker.http_door` reads it.
_TRAJECTORY_HEADER: Final = "X-Tangram-Trajectory"
#: Outcomes after which the state of the server is unknown.
_BROKEN: Final = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})


class _ReportedTokens(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _CountedAnswer(msgspec.Struct):
    usage: _ReportedTokens | None = None


_answers: Final = msgspec.json.Decoder(_CountedAnswer)


def tokens_of(answer: CallResult) -> TokenUsage | None:
    """Return the tokens that an answer in the form of OpenAI reports; None: it reports none, or is streamed."""
    if '"usage"' not in answer.body or answer.truncated:
        return None
    try:
        usage = _answers.decode(answer.body).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    if usage is None:
        return None
    return TokenUsage(max(0, usage.prompt_tokens), max(0, usage.completion_tokens or 0))


@dataclass(frozen=True)
class CallTools:
    """What all calls of a driver share."""

    services: ServiceHost
    connections: httpcore.AsyncConnectionPool
    response_streams: ResponseStreams | None


class ServiceCall:
    """One attempt at a call."""

    def __init__(
        self,
        tools: CallTools,
        order: RunOrder,
        call: CallSpec,
        service: GpuService,
        chunk: Allocation,
        hosting: Hosting,
        sending: Callable[[], Awaitable[None]],
    ) -> None:
        """``sending`` is awaited before the first byte of the request."""
        self._tools = tools
        self._order = order
        self._call = call
        self._service = service
        self._hosting = hosting
        self._home = Home(hosting.service, chunk.units)
        self._sending = sending
        self._attempt: CallAttempt | None = None
        self._restore_seconds = 0.0

    @property
    def sent(self) -> bool:
        """The first byte of the request may have gone out."""
        return self._attempt is not None and self._attempt.sent

    def seconds(self) -> float:
        """Return the time since the request was sent."""
        return 0.0 if self._attempt is None else self._attempt.seconds()

    async def run(self) -> RunReport:
        """Restore the service and send it the request."""
        services, hosting, holder = self._tools.services, self._hosting, self._order.mark
        began = asyncio.get_running_loop().time()
        try:
            server = await services.hold(
                holder, self._service, self._home, hosting.memory_bytes, hosting.evicted
            )
        except PLACEMENT_ERRORS as error:
            return self._not_placed(error)
        self._restore_seconds = asyncio.get_running_loop().time() - began
        try:
            report = await self._request(server)
        finally:
            services.runner.release(holder, self._home)
        hangs = report.outcome is Outcome.TIMEOUT and self._service.engine is Engine.TORCH
        if hangs or report.outcome in _BROKEN:
            await services.runner.discard(self._home, later=hangs)
        return replace(report, chunk=services.news(self._home, self._restore_seconds))

    def stopped(self, report: RunReport) -> RunReport:
        """Add what is in memory to the report of a stopped call; its restore may go on."""
        news = self._tools.services.news(self._home, self._restore_seconds)
        return replace(report, chunk=news)

    def _not_placed(self, error: Exception) -> RunReport:
        services = self._tools.services
        report = services.failure_report(error)
        detail = f"service {self._home.service}: {report.detail}"
        news, gone = report.chunk or ChunkReport(), services.news(self._home).gone
        failed = (self._home,) if is_failed_placement(error) else ()
        news = replace(news, gone=tuple(sorted({*news.gone, *gone})), failed=failed)
        return replace(report, detail=detail, chunk=news)

    async def _request(self, server: Server) -> RunReport:
        api = ApiConfig(
            server.base_url, reach=Reach.LOOPBACK, response_limit_bytes=ANSWER_BYTES,
            idle_timeout_seconds=self._service.idle_timeout_seconds,
        )  # fmt: skip
        limit = self._order.action.timeout_seconds or CALL_SECONDS
        response_streams = self._tools.response_streams if self._call.stream else None
        stream = response_streams.open(self._order.id) if response_streams is not None else None
        self._attempt = CallAttempt(self._attributed(), api, "", limit, self._sending, stream)
        report = replace(await exchange(self._tools.connections, self._attempt), feedback=None)
        if report.answer is None:
            return report
        answer = ServiceResult(
            *(getattr(report.answer, name) for name in report.answer.__struct_fields__),
            cached=self._hosting.cached,
            restore_seconds=self._restore_seconds,
            evicted=tuple(home.service for home in self._hosting.evicted),
        )
        return replace(report, answer=answer, usage=tokens_of(report.answer))

    def _attributed(self) -> CallSpec:
        """Return the call; one of engine ``torch`` names its trajectory, whose cache no client names otherwise."""
        if self._service.engine is not Engine.TORCH:
            return self._call
        kept = {
            name: value
            for name, value in self._call.headers.items()
            if name.lower() != _TRAJECTORY_HEADER.lower()
        }
        # An empty name, too: without one the worker reads the body, which is the client's.
        named = {_TRAJECTORY_HEADER: self._order.action.trajectory_key or ""}
        return replace(self._call, headers={**kept, **named})
