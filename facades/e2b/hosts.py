"""Hosts of sandboxes: ``PORT-ID.DOMAIN`` reaches the server on a port of a sandbox (``get_host`` of the SDKs).

A request shows the traffic token of the sandbox, its ``envd`` token or an API token. Without any, only a sandbox
that was created with ``network={"allow_public_traffic": True}`` answers. What passes in each direction is that of
the native ports (`scheduler.runtime.port_forwarding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from contract.port_routes import METHODS
from contract.routes import Binary, Route
from facades.e2b.sandbox import sandboxes_of
from scheduler.runtime.gateway.facade import FacadePort, note_refusal
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, Send
from scheduler.runtime.gateway.route_table import Handler

#: What E2B's proxy says.
_CLOSED: Final = "The sandbox is running but port is not open"
_MISSING: Final = "The sandbox was not found"
_TOKENS: Final = (b"e2b-traffic-access-token", b"x-access-token", b"x-api-key")


def _route(method: str) -> Route:
    return Route(
        method=method,
        path="/e2b/hosts/{port}/{id}/{path}",
        operation="e2b_host",
        summary=f"{method} at a server in a sandbox",
        scope=None,
        responses={200: Binary("*/*", "The response of the server.")},
        streams=True,
    )


def _root(method: str) -> Route:
    return replace(_route(method), path="/e2b/hosts/{port}/{id}/")


ROUTES: Final = tuple(each for method in METHODS for each in (_route(method), _root(method)))


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the routes."""
    sandboxes = sandboxes_of(port)

    async def host(
        request: HttpRequest, _: None, number: str, name: str, *rest: str | Send
    ) -> HttpResponse | None:
        send: Send = rest[-1]  # type: ignore[assignment] # after the path, if there is one
        shown = any(request.header(each) for each in _TOKENS)
        if shown:
            principal = await sandboxes.principal(request, name, traffic=True)
        elif (owner := await sandboxes.public(request, name)) is not None:
            principal = owner
        else:
            raise HttpError(403, "no_token", f"show {_TOKENS[0].decode()}: this host is not public")
        try:
            await sandboxes.running(request, principal, name)
            await port.forward(request, principal, name, number, send)
        except HttpError as error:
            if error.status != 502:
                raise
            note_refusal("e2b", request, error)
            return _unreachable(error, name, number)
        return None

    return {"e2b_host": host}


def _unreachable(error: HttpError, name: str, port: str) -> HttpResponse:
    """Return the answer of E2B's proxy without a sandbox, or without a server on the port."""
    body = {"sandboxId": name, "code": 502, "message": _MISSING}
    if error.code != "sandbox_not_found":
        body |= {"message": _CLOSED, "port": int(port)}
    return HttpResponse(502, body)
