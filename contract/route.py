"""Route: one method of one path, with what a client needs to know of it.

`contract.routes` is the table of all routes of the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from domain.principals import Scope

API_PREFIX = "/api/v1"
WEBSOCKET = "WEBSOCKET"


@dataclass(frozen=True)
class Binary:
    """A body that is not JSON."""

    media_type: str
    description: str


@dataclass(frozen=True)
class Parameter:
    """A parameter in the query or in a header."""

    name: str
    description: str
    schema: dict[str, Any]
    place: str = "query"


#: A struct, one of several structs, bytes, or the JSON schema of an object.
Body = type | tuple[type, ...] | Binary | dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path, with everything that a client needs to know of it."""

    method: str
    #: ``{path}`` takes the rest of the path, any other parameter one segment.
    path: str
    #: Name of the operation, which its handler is bound by.
    operation: str
    summary: str
    #: Scope that the token needs; None: no token of the API.
    scope: Scope | None
    responses: dict[int, Body]
    body: Body | None = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    #: Statuses of problems, beside those that every route has.
    errors: tuple[int, ...] = ()
    #: The handler sends the answer itself, piece by piece.
    streams: bool = False
    #: Without a scope: the token that it takes instead, as ``rank`` of a batch.
    own_token: str = ""
    #: The token of the trajectory in the path serves as well (`scheduler.runtime.rollouts.chat_tokens`).
    for_agents: bool = False


TEXT: dict[str, Any] = {"type": "string"}
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same key with the same body gets the first answer again; with another body: 409.",
    {"type": "string", "minLength": 1, "maxLength": 255},
    "header",
)
PROJECT = Parameter(
    "project",
    "Project of the object, for tokens that are bound to none; without it, project `default`.",
    TEXT,
)
