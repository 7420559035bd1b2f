"""Endpoints of the programs that run in environments, which their node lists and ends."""

from __future__ import annotations

import msgspec

from contract.process_routes import END_SIGNALS, ProcessList
from domain.errors import Conflict, InvalidRequest, NotFound
from domain.ports.processes import ProgramFacts
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name

_all_facts = msgspec.json.Decoder(list[ProgramFacts])
_facts = msgspec.json.Decoder(ProgramFacts)


class Processes:
    """Handlers of programs."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def list(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """GET /trajectories/{id}/processes."""
        try:
            found = await self._ask(request, principal, name, "GET", "")
        except (Conflict, NotFound) as error:
            if error.code != "no_environment":
                raise
            return HttpResponse(200, ProcessList([]))
        return HttpResponse(200, ProcessList(_all_facts.decode(found)))

    async def end(
        self, request: HttpRequest, principal: Principal, name: str, pid: str
    ) -> HttpResponse:
        """DELETE /trajectories/{id}/processes/{pid}."""
        if not pid.isdecimal():
            raise NotFound(f"no program {pid!r} runs in this environment")
        number = request.query().get("signal", "SIGKILL")
        if number not in END_SIGNALS:
            raise InvalidRequest(f"give one of {', '.join(END_SIGNALS)}", pointer="?signal")
        query = {"signal": number}
        found = await self._ask(request, principal, name, "DELETE", f"/{pid}", query)
        return HttpResponse(200, _facts.decode(found))

    async def _ask(
        self,
        request: HttpRequest,
        principal: Principal,
        name: str,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
    ) -> bytes:
        await request.body()
        checked_name(name, "trajectory")
        project = await self._context.project(request, principal)
        async with self._context.node_door.request(
            project, name, method, f"/processes{path}", query=query
        ) as answer:
            return await answer.body()
