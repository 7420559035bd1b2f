"""Endpoints of liveness, readiness, status, wait queues and decisions."""

from __future__ import annotations

import json
from time import time
from typing import Any, Final, TypeVar, cast

import redis

from contract.responses import WaitDetails
from contract.routes import MAX_DECISIONS, MAX_QUEUES
from contract.status import SystemStatus
from domain.backends import LLM, owner_of
from domain.errors import TangramError
from domain.principals import Principal
from domain.principals import Scope as TokenScope
from scheduler.runtime.gateway.authentication import bearer_token
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import number
from scheduler.runtime.liveness import REFUSING

T = TypeVar("T")

#: A worker without a sign of life for this long counts as dead.
WORKER_SECONDS = 10.0
#: Texts of failed checks for callers without a token.
_PUBLIC: Final = {
    "redis": "redis does not answer",
    "database": "the database does not answer",
    "migrations": "the database lacks migrations; run manage.py migrate",
    "leader": "no scheduler loop leads",
    "pages": "the pages are not loaded",
    "loop": "no loop worker shows life",
    "node": "no node worker shows life",
    "projector": "no projector worker shows life",
}
_FAILED: Final = "failed; a token with scope operate sees the reason"


class Health:
    """Handlers of ``/livez``, ``/readyz``, ``/status``, ``/queues`` and ``/decisions``."""

    def __init__(self, context: GatewayContext, needed_roles: tuple[str, ...]) -> None:
        self._context = context
        self._needed_roles = needed_roles

    async def live(self, request: HttpRequest) -> HttpResponse:
        """GET /livez: this process answers."""
        return HttpResponse(200, {"status": "ok"})

    async def ready(self, request: HttpRequest) -> HttpResponse:
        """GET /readyz[?verbose]: 200 when actions can be accepted and run, else 503.

        ``verbose`` adds every check, and for a token with scope operate facts: the leader and its
        epoch, the lag of the loop and of the readers of the journal, the workers. Without such a token
        a failed check has a text that names no worker, host or address.
        """
        checks = await self._checks()
        wrong = {name: problem for name, problem in checks.items() if problem}
        body: dict[str, Any] = {"status": "ready" if not wrong else "not ready"}
        verbose = "verbose" in request.query()
        operator = (verbose or bool(wrong)) and await self._is_operator(request)
        if verbose or wrong:
            shown = checks if operator else {name: _public(name, checks[name]) for name in checks}
            body["checks"] = {name: problem or "ok" for name, problem in shown.items()}
        if verbose and operator and not checks.get("redis"):
            body["facts"] = await self._context.backend.facts()
        return HttpResponse(200 if not wrong else 503, body)

    async def _is_operator(self, request: HttpRequest) -> bool:
        """Return whether a token with scope operate asks; without the database none does."""
        if not bearer_token(request):
            return False
        try:
            return (await self._context.tokens.caller(request)).may(TokenScope.OPERATE)
        except TangramError:
            return False

    async def _checks(self) -> dict[str, str]:
        checks = dict(await self._context.backend.checks())
        try:
            leader = cast("bytes | None", await self._context.client.get(self._context.keys.leader))
            workers = await self._workers()
        except redis.RedisError as error:
            return {**checks, "redis": str(error) or "does not answer"}
        checks["redis"] = ""
        checks["leader"] = "" if leader else _no_leader(workers)
        if leader and not any(worker["name"] == leader.decode() for worker in workers):
            checks["leader"] = f"{leader.decode()} leads but has not shown life for a while"
        for role in self._needed_roles:
            alive = any(worker["role"] == role for worker in workers)
            checks[role] = "" if alive else f"no {role} worker shows life"
        return checks

    async def _workers(self) -> list[dict[str, Any]]:
        keys = self._context.keys
        rows = cast("dict[bytes, bytes]", await self._context.client.hgetall(keys.workers))
        found = [{"name": name.decode(), **json.loads(body)} for name, body in rows.items()]
        gone = [worker["name"] for worker in found if time() - worker["at"] > 60 * WORKER_SECONDS]
        if gone:
            await self._context.client.hdel(keys.workers, *gone)
        return [worker for worker in found if time() - worker["at"] <= WORKER_SECONDS]

    async def decisions(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /api/v1/decisions?limit=: recent decisions of policies, latest first.

        Only groups with an action that has several feasible unit counts. Ids of actions of all
        projects are shown; an action itself is visible to its own project alone.
        """
        limit = number(request.query().get("limit", "100"), "limit", MAX_DECISIONS)
        view = await self._context.queries.decisions(max(1, int(limit)))
        view.items = [each for each in view.items if _is_visible(each.resource, principal)]
        return HttpResponse(200, view)

    async def queues(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /api/v1/queues?limit=: waiting actions by what they need, the longest line first.

        Names of project, task, trajectory and of a project's own pools of backends are shown to that project alone.
        """
        limit = number(request.query().get("limit", "100"), "limit", MAX_QUEUES)
        view = await self._context.queries.queues(max(1, int(limit)))
        for line in view.items:
            if not principal.sees(line.project):
                line.project, line.task, line.trajectory = "", "", None
                line.why = WaitDetails(line.why.code, "the reason is shown to its own project")
                line.needs = _visible(line.needs, principal)
        return HttpResponse(200, view)

    async def status(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /api/v1/status: pools, resources, nodes and the loop, as the leader sees them.

        Shares, tasks and a project's own pools of backends are shown to their own project alone.
        """
        status = await self._context.queries.status()
        if principal.project is not None:
            _keep_own(status, principal.project)
            status.resources = _visible(status.resources, principal)
        status.workers = [_without_histograms(worker) for worker in await self._workers()]
        return HttpResponse(200, status)


def _public(name: str, problem: str) -> str:
    """Return the text of a failed check for callers without a token; empty when it passed."""
    return _PUBLIC.get(name, _FAILED) if problem else ""


def _no_leader(workers: list[dict[str, Any]]) -> str:
    refusals = [f"{w['name']}: {w.get('why')}" for w in workers if w["role"] == REFUSING]
    return "; ".join(["no scheduler loop leads", *refusals])


def _visible(by_resource: dict[str, T], principal: Principal) -> dict[str, T]:
    """Leave out the seats of other projects' own pools: their names are those of the tasks that use them."""
    return {name: value for name, value in by_resource.items() if _is_visible(name, principal)}


def _is_visible(resource: str, principal: Principal) -> bool:
    owner = owner_of(resource) if resource.startswith(LLM) else ""
    return not owner or principal.sees(owner)


def _keep_own(status: SystemStatus, project: str) -> None:
    """Remove shares and tasks of other projects, and what concerns operators only."""
    status.redis = None
    own = f"{project}/"
    status.shares = [share for share in status.shares if share.project == project]
    status.steered_tasks = {k: v for k, v in status.steered_tasks.items() if k.startswith(own)}
    status.durations = {k: v for k, v in status.durations.items() if k.startswith(own)}


def _without_histograms(worker: dict[str, Any]) -> dict[str, Any]:
    """Leave out lists, which only ``/metrics`` reads, and the machine, which the doctor judges."""
    return {
        name: fact
        for name, fact in worker.items()
        if not isinstance(fact, list) and name != "machine"
    }
