"""Is this process alive, is the system ready, how does it stand, what did it decide."""

from __future__ import annotations

import json
from time import time
from typing import Any, cast

import redis

from contract.responses import WaitDetails
from domain.principals import Principal
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.http import Request, Response
from scheduler.runtime.gateway.request_parsing import number
from scheduler.runtime.loop.housekeeping import REFUSING

#: A worker that has not shown life for this long is counted as gone.
WORKER_SECONDS = 10.0


#: Decisions that the core remembers.
MOST_DECISIONS = 256
#: Lines shown at most; each costs the loop a look at its head.
MOST_LINES = 500


class Health:
    """Handlers of ``/livez``, ``/readyz`` and ``/api/v1/status``."""

    def __init__(self, context: Context, needed_roles: tuple[str, ...]) -> None:
        self._context = context
        self._needed_roles = needed_roles

    async def live(self) -> Response:
        """GET /livez: this process answers."""
        return Response(200, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """GET /readyz[?verbose]: 200 when actions can be accepted and run, else 503.

        ``verbose`` adds every check, and facts: who leads since when, how far the loop and the
        readers of the journal are behind.
        """
        checks = await self._checks()
        wrong = {name: problem for name, problem in checks.items() if problem}
        body: dict[str, Any] = {"status": "ready" if not wrong else "not ready"}
        verbose = "verbose" in request.query()
        if verbose or wrong:
            body["checks"] = {name: problem or "ok" for name, problem in checks.items()}
        if verbose and not checks.get("redis"):
            body["facts"] = await self._context.backing.facts()
        return Response(200 if not wrong else 503, body)

    async def _checks(self) -> dict[str, str]:
        checks = dict(await self._context.backing.checks())
        try:
            leader = cast("bytes | None", await self._context.client.get(self._context.keys.leader))
            workers = await self._workers()
        except redis.RedisError as error:
            return {**checks, "redis": str(error) or "does not answer"}
        checks["redis"] = ""
        checks["leader"] = "" if leader else _why_nobody_leads(workers)
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

    async def decisions(self, request: Request, principal: Principal) -> Response:
        """GET /api/v1/decisions?limit=: what policies decided lately, latest first.

        Only of groups in which somebody had a choice. Ids of actions are shown whoever they belong
        to; what an action is remains its project's.
        """
        limit = number(request.query().get("limit", "100"), "limit", MOST_DECISIONS)
        return Response(200, await self._context.questions.decisions(max(1, int(limit))))

    async def queues(self, request: Request, principal: Principal) -> Response:
        """GET /api/v1/queues?limit=: what waits and for what, the longest lines first.

        Whose they are is told of the caller's own project alone.
        """
        limit = number(request.query().get("limit", "100"), "limit", MOST_LINES)
        view = await self._context.questions.queues(max(1, int(limit)))
        for line in view.items:
            if not principal.sees(line.project):
                line.project, line.task, line.trajectory = "", "", None
                line.why = WaitDetails(line.why.code, "why in words is told to its own project")
        return Response(200, view)

    async def status(self, request: Request, principal: Principal) -> Response:
        """GET /api/v1/status: pools, resources, nodes and the loop, as the leader sees them.

        Shares and tasks are told of the caller's own project alone.
        """
        status = await self._context.questions.status()
        if principal.project is not None:
            _keep_own(status, principal.project)
        status["workers"] = [_for_people(worker) for worker in await self._workers()]
        return Response(200, status)


def _why_nobody_leads(workers: list[dict[str, Any]]) -> str:
    refusals = [f"{w['name']}: {w.get('why')}" for w in workers if w["role"] == REFUSING]
    return "; ".join(["no scheduler loop leads", *refusals])


def _keep_own(status: dict[str, Any], project: str) -> None:
    """Leave out what is other projects': they do not exist for a token that is bound to one."""
    status["shares"] = [each for each in status.get("shares", ()) if each["project"] == project]
    for member in ("steered_tasks", "durations"):  # by ``project/task``
        of_tasks = status.get(member, {})
        status[member] = {k: v for k, v in of_tasks.items() if k.startswith(f"{project}/")}


def _for_people(worker: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only `/metrics` understands."""
    return {name: fact for name, fact in worker.items() if not isinstance(fact, list)}
