"""Endpoints that pause, prioritise or cancel a task, or evict a service. All may be repeated."""

from __future__ import annotations

import msgspec

from contract.receipts import ChangedTask, EvictedService
from contract.requests import CancelRequest, PriorityRequest
from domain.codec import encode
from domain.errors import NotFound
from domain.events import ServiceEvictionAsked, TaskCancelRequested, TaskPaused, TaskPrioritised
from domain.principals import Principal
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name, decode

_cancel = msgspec.json.Decoder(CancelRequest)
_priority = msgspec.json.Decoder(PriorityRequest)


class TaskControl:
    """Handlers of ``/tasks/{id}/…`` and of evictions.

    An unknown task is a 404: a setting of a mistyped name would hold up a task of that name later.
    """

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def pause(self, request: HttpRequest, principal: Principal, task: str) -> HttpResponse:
        """POST /tasks/{id}/pause: running actions continue, waiting ones get no grant."""
        return await self._pause(request, principal, task, paused=True)

    async def resume(self, request: HttpRequest, principal: Principal, task: str) -> HttpResponse:
        """POST /tasks/{id}/resume."""
        return await self._pause(request, principal, task, paused=False)

    async def _pause(
        self, request: HttpRequest, principal: Principal, task: str, *, paused: bool
    ) -> HttpResponse:
        await request.body()
        project = await self._project(request, principal, task)
        asked = asked_by(request, principal)
        event = TaskPaused(project=project, task=task, paused=paused, asked=asked)
        await self._context.submitter.append([encode(event)], follows=project)
        return HttpResponse(202, ChangedTask(task, project, paused=paused))

    async def prioritise(
        self, request: HttpRequest, principal: Principal, task: str
    ) -> HttpResponse:
        """POST /tasks/{id}/priority: serve all actions at this priority; null: each at its own."""
        priority = decode(_priority, await request.body()).priority
        project = await self._project(request, principal, task)
        asked = asked_by(request, principal)
        event = TaskPrioritised(project=project, task=task, priority=priority, asked=asked)
        await self._context.submitter.append([encode(event)], follows=project)
        return HttpResponse(202, ChangedTask(task, project, priority=priority))

    async def cancel(self, request: HttpRequest, principal: Principal, task: str) -> HttpResponse:
        """POST /tasks/{id}/cancel: cancel the present actions; later ones are accepted."""
        body = await request.body()
        reason = decode(_cancel, body).reason if body.strip() else "cancelled with its task"
        project = await self._project(request, principal, task)
        event = TaskCancelRequested(
            project=project, task=task, reason=reason, asked=asked_by(request, principal)
        )
        await self._context.submitter.append([encode(event)], follows=project)
        return HttpResponse(202, ChangedTask(task, project, cancelling=True))

    async def evict(self, request: HttpRequest, principal: Principal, service: str) -> HttpResponse:
        """POST /services/{id}/evict: evict it from the chunks on which no action runs."""
        await request.body()
        await self._context.admitted(lambda: self._known(service))
        if principal.project is not None:
            raise HttpError(
                403,
                "missing_scope",
                "services belong to all projects: use a token that is not bound to a project",
            )
        event = ServiceEvictionAsked(service=service, asked=asked_by(request, principal))
        await self._context.submitter.append([encode(event)])
        return HttpResponse(202, EvictedService(service, evicting=True))

    def _known(self, service: str) -> None:
        if service not in self._context.admission.view.services:
            raise NotFound(f"there is no service {service!r}")

    async def _project(self, request: HttpRequest, principal: Principal, task: str) -> str:
        checked_name(task, "task")
        project = await self._context.project(request, principal)
        await self._context.check_task(project, task)
        return project
