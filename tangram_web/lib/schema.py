"""OpenAPI document of everything that the web process serves.

Django's generator finds the views of Django; the routes of the gateway and of its facades, which
stand in front of Django, are rendered from their tables (`contract.routes`, `facades.registry`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from drf_spectacular.openapi import AutoSchema

from contract.requests import MAX_BATCH, ActionRequest, BatchRequest
from contract.responses import ProblemDetails
from contract.routes import (
    API_PREFIX,
    IDEMPOTENCY_KEY,
    ROUTES,
    SOCKETS,
    Binary,
    Body,
    Parameter,
    Route,
)
from tangram_web.lib.access import needed_scope
from tangram_web.lib.problems import CONTENT_TYPE

_REF = "#/components/schemas/{name}"
_COMMON_ERRORS = (400, 401, 403)
#: What the server answers on every route, before or instead of it: see `tangram_web.serving.limits`.
_REFUSALS = (400, 408, 413, 429, 431, 503)
#: The scheduler may be overloaded or away.
_ROUTE_ERRORS = (*_COMMON_ERRORS, 429, 503)
_BEARER: list[dict[str, list[str]]] = [{"bearer": []}]
_PROBLEM = {CONTENT_TYPE: {"schema": {"$ref": _REF.format(name=ProblemDetails.__name__)}}}
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class ProblemAutoSchema(AutoSchema):
    """Adds to each operation of Django the problems that it answers with, and its scope."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Return the operation with its problems."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        own: str = getattr(self.view, "own_token", "")
        scope = own or needed_scope(self.method, self.view)
        operation["x-scope"] = scope
        codes = {*_COMMON_ERRORS, 404, 422}
        if self.method != "GET":
            codes |= {409, 413, 415, 503} | ({410} if own else set())
        if any(given["name"] == "If-Match" for given in operation.get("parameters", ())):
            codes.add(412)
        operation["responses"].update(_errors(codes, _PROBLEM))
        operation["security"] = _BEARER if own else [*_BEARER, {"session": []}]
        return operation

    def get_auth(self) -> list[dict[str, Any]]:
        """Leave security to `get_operation`."""
        return []


def add_routes(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Merge the routes of the gateway and of its facades into the document of Django."""
    from facades import registry  # loads packages of others: only when the document is requested

    components = result.setdefault("components", {})
    components.setdefault("schemas", {}).update(_struct_schemas(ROUTES))
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token, `tgm_…`."},
        "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
    }
    paths = result["paths"]
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, _PROBLEM)
    for route in SOCKETS:
        paths.setdefault(route.path, {}).setdefault("get", _operation(route, _PROBLEM))
    for methods in paths.values():
        if "post" in methods:
            _add_idempotency_key(methods["post"])
    for facade in (entry.facade for entry in registry.entries() if entry.documented):
        for route in facade.routes:
            operation = _operation(route, _content(facade.error))
            operation["description"] = "`/trajectories/ID` before the path names the trajectory."
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    for methods in paths.values():
        for operation in methods.values():
            for code, problem in _errors(_REFUSALS, _PROBLEM).items():
                operation["responses"].setdefault(code, problem)
    result["paths"] = dict(sorted(paths.items()))
    return result


def _add_idempotency_key(operation: dict[str, Any]) -> None:
    operation.setdefault("parameters", []).append(_parameter(IDEMPOTENCY_KEY))
    for code, problem in _errors({409, 422, 503}, _PROBLEM).items():
        operation["responses"].setdefault(code, problem)


def _struct_schemas(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the schemas of all structs in bodies of ``routes``, by name."""
    bodies = [body for route in routes for body in (route.body, *route.responses.values())]
    options = [each for body in bodies for each in (body if isinstance(body, tuple) else (body,))]
    structs = [body for body in options if isinstance(body, type)]
    _, schemas = msgspec.json.schema_components(
        [*structs, ActionRequest, ProblemDetails], ref_template=_REF
    )
    # Items are checked one by one, so the struct does not type them.
    actions = schemas[BatchRequest.__name__]["properties"]["actions"]
    actions |= {"items": {"$ref": _REF.format(name=ActionRequest.__name__)}, "maxItems": MAX_BATCH}
    return schemas


def _operation(route: Route, error: Mapping[str, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(route.path)
    ]
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.path.removeprefix(API_PREFIX).split("/")[1]],
        "security": [],
        "parameters": [*in_path, *map(_parameter, route.parameters)],
        "responses": {str(code): _response(code, body) for code, body in route.responses.items()},
    }
    if (shown := route.scope or route.own_token) != "":
        operation |= {"security": _BEARER, "x-scope": shown}
        operation["responses"] |= _errors({*_ROUTE_ERRORS, *route.errors}, error)
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": _content(route.body),
        }
    return operation


def _parameter(given: Parameter) -> dict[str, Any]:
    return {
        "name": given.name,
        "in": given.place,
        "description": given.description,
        "schema": given.schema,
    }


def _response(status: int, body: Body) -> dict[str, Any]:
    described = body.description if isinstance(body, Binary) else HTTPStatus(status).phrase
    return {"description": described, "content": _content(body)}


def _content(body: Body) -> dict[str, Any]:
    if isinstance(body, Binary):
        schema: dict[str, Any] = {"type": "string", "contentMediaType": body.media_type}
        return {body.media_type: {"schema": schema}}
    if isinstance(body, tuple):
        schema = {"oneOf": [{"$ref": _REF.format(name=each.__name__)} for each in body]}
    else:
        schema = body if isinstance(body, dict) else {"$ref": _REF.format(name=body.__name__)}
    return {"application/json": {"schema": schema}}


def _errors(codes: Iterable[int], content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(code): {"description": HTTPStatus(code).phrase, "content": content}
        for code in sorted(codes)
    }
