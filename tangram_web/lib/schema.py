"""The one OpenAPI document: what Django serves and what the gateway serves."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec
from drf_spectacular.openapi import AutoSchema

from contract.requests import MAX_BATCH
from contract.responses import ProblemDetails
from tangram_web.lib.access import needed_scope
from tangram_web.lib.openapi_hot import (
    HOT_ENDPOINTS,
    IDEMPOTENCY_KEY,
    WIRE_STRUCTS,
    BatchBody,
    Body,
    Bytes,
    HotEndpoint,
    Parameter,
)
from tangram_web.lib.problems import CONTENT_TYPE

API_PREFIX = "/api/v1"
_REF = "#/components/schemas/{name}"
_PROBLEMS_OF_ALL = (400, 401, 403)
#: Whatever reaches the loop may find it far behind, or away.
_PROBLEMS_OF_HOT = (*_PROBLEMS_OF_ALL, 429, 503)
_BEARER: list[dict[str, list[str]]] = [{"bearer": []}]
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class ProblemAutoSchema(AutoSchema):
    """Adds to each operation of Django the problems that it answers with, and its scope."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Return the operation with its problems."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        scope = needed_scope(self.method, self.view)
        operation["x-scope"] = scope
        codes = {*_PROBLEMS_OF_ALL, 404, 422}
        if self.method != "GET":
            codes |= {409, 413, 415, 503}
        if any(given["name"] == "If-Match" for given in operation.get("parameters", ())):
            codes.add(412)
        operation["responses"].update(_problems(codes))
        operation["security"] = [*_BEARER, {"session": []}]
        return operation

    def get_auth(self) -> list[dict[str, Any]]:
        """Leave security to `get_operation`."""
        return []


def add_hot_endpoints(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Merge the gateway's endpoints and structs into the document of Django."""
    components = result.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(_wire_schemas())
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token, `tgm_…`."},
        "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
    }
    paths = result["paths"]
    for endpoint in HOT_ENDPOINTS:
        paths.setdefault(API_PREFIX + endpoint.path, {})[endpoint.method] = _operation(endpoint)
    for methods in paths.values():
        if "post" in methods:
            _add_idempotency_key(methods["post"])
    result["paths"] = dict(sorted(paths.items()))
    return result


def _add_idempotency_key(operation: dict[str, Any]) -> None:
    operation.setdefault("parameters", []).append(_parameter(IDEMPOTENCY_KEY))
    for code, problem in _problems({409, 422, 503}).items():
        operation["responses"].setdefault(code, problem)


def _wire_schemas() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(
        [*WIRE_STRUCTS, ProblemDetails], ref_template=_REF
    )
    components["BatchRequest"] = {
        "type": "object",
        "title": "BatchRequest",
        "description": "Up to 1,000 actions; each is accepted or refused on its own.",
        "properties": {
            "actions": {
                "type": "array",
                "items": {"$ref": _REF.format(name="ActionRequest")},
                "maxItems": MAX_BATCH,
            }
        },
        "required": ["actions"],
        "additionalProperties": False,
    }
    return components


def _operation(endpoint: HotEndpoint) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(endpoint.path)
    ]
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "tags": [endpoint.path.split("/")[1]],
        "security": _BEARER,
        "x-scope": endpoint.scope,
        "parameters": [*in_path, *(_parameter(given) for given in endpoint.parameters)],
        "responses": {
            **{str(status): _answer(status, body) for status, body in endpoint.answers.items()},
            **_problems({*_PROBLEMS_OF_HOT, *endpoint.problems}),
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": _content(endpoint.body),
        }
    return operation


def _parameter(given: Parameter) -> dict[str, Any]:
    return {
        "name": given.name,
        "in": given.place,
        "description": given.description,
        "schema": given.schema,
    }


def _answer(status: int, body: Body) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if body is not None:
        answer["content"] = _content(body)
    if isinstance(body, Bytes):
        answer["description"] = body.description
    return answer


def _content(body: Body) -> dict[str, Any]:
    if isinstance(body, Bytes):
        schema: dict[str, Any] = {"type": "string", "contentMediaType": body.media_type}
        return {body.media_type: {"schema": schema}}
    if isinstance(body, dict):
        return {"application/json": {"schema": body}}
    name = "BatchRequest" if body is BatchBody else getattr(body, "__name__", "")
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _problems(codes: set[int]) -> dict[str, Any]:
    return {
        str(code): {
            "description": HTTPStatus(code).phrase,
            "content": {CONTENT_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDetails")}}},
        }
        for code in sorted(codes)
    }
