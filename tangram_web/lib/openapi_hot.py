"""The endpoints that the gateway serves, as data for the one OpenAPI document.

They stand in front of Django, so its schema generator cannot see them; their bodies are the
structs of `contract.requests` and `contract.responses`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from contract.requests import (
    MAX_WAIT_SECONDS,
    ActionRequest,
    CancelRequest,
    LeaseReleaseRequest,
    LeaseRenewRequest,
    PriorityRequest,
    TaskRequest,
    TrajectoryRequest,
)
from contract.responses import (
    ActionResponse,
    BatchItemResponse,
    BatchResponse,
    CompletionsResponse,
    DecisionsResponse,
    QueuesResponse,
)
from domain.ports.drivers import MAX_FILE_BYTES
from domain.principals import Scope


class Bytes(NamedTuple):
    """A body that is not JSON."""

    media_type: str
    description: str


class Parameter(NamedTuple):
    """A parameter in the query or a header."""

    name: str
    description: str
    schema: dict[str, Any]
    place: str = "query"


#: A struct of `contract`, bytes, any JSON object (a plain schema), or nothing.
Body = type | Bytes | dict[str, Any] | None


class HotEndpoint(NamedTuple):
    """One method of one path of the gateway."""

    method: str
    path: str
    operation: str
    summary: str
    scope: Scope
    answers: dict[int, Body]
    body: Body = None
    parameters: tuple[Parameter, ...] = ()
    body_required: bool = True
    #: Beside those that every endpoint of the gateway has.
    problems: tuple[int, ...] = ()


class BatchBody:
    """Stands for a batch in the table: its items are checked one by one, so it has no struct."""


WAIT = Parameter(
    "wait",
    "Seconds to wait for the end of the action, or for the grant of a lease.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS},
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "The same key with the same body is answered as the first time; with another body: 409.",
    {"type": "string", "minLength": 1, "maxLength": 255},
    "header",
)
PROJECT = Parameter(
    "project",
    "For tokens bound to no project: whose object; without it, project `default`.",
    {"type": "string"},
)
FILE = Bytes("application/octet-stream", f"The file, up to {MAX_FILE_BYTES} bytes.")
OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


def _object(**properties: str) -> dict[str, Any]:
    """Return the schema of an object that has at least these members, given by JSON type."""
    described = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": described, "required": list(properties)}


ACCEPTED = _object(id="string", state="string")
NAMED = _object(id="string", project="string")
WRITTEN = _object(path="string", bytes="integer")
RENEWED = _object(id="string", expires_at="string")

HOT_ENDPOINTS: tuple[HotEndpoint, ...] = (
    HotEndpoint(
        "post", "/actions", "actions_submit", "Submit an action", Scope.SUBMIT,
        {200: ActionResponse, 202: ACCEPTED}, ActionRequest, (WAIT,),
        problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "post", "/actions/batch", "actions_submit_batch",
        "Submit up to 1,000 actions; each is accepted or refused on its own", Scope.SUBMIT,
        {202: BatchResponse}, BatchBody, problems=(409, 413, 422),
    ),
    HotEndpoint(
        "get", "/actions/{id}", "actions_retrieve", "How an action stands, and why it waits",
        Scope.READ, {200: ActionResponse}, parameters=(WAIT,), problems=(404, 422),
    ),
    HotEndpoint(
        "get", "/actions/{id}/stream", "actions_stream",
        'The answer of a call with `"stream": true`, as it comes; for one reader', Scope.READ,
        {200: Bytes("*/*", "Status, headers and body are those of the API.")},
        problems=(404, 409),
    ),
    HotEndpoint(
        "post", "/actions/{id}/cancel", "actions_cancel", "Cancel an action; may be repeated",
        Scope.SUBMIT, {200: ActionResponse, 202: ACCEPTED}, CancelRequest, body_required=False,
        problems=(404, 413, 422),
    ),
    HotEndpoint(
        "post", "/leases/{id}/renew", "leases_renew", "Keep a lease", Scope.SUBMIT,
        {200: RENEWED}, LeaseRenewRequest, body_required=False,
        problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "post", "/leases/{id}/release", "leases_release", "Give a lease back; may be repeated",
        Scope.SUBMIT, {200: ActionResponse, 202: ActionResponse}, LeaseReleaseRequest, body_required=False,
        problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "get", "/events", "events_stream", "Changes of actions as server-sent events", Scope.READ,
        {200: Bytes(
            "text/event-stream",
            "`submitted`, `granted` and `finished` of the actions of the token's project (of all, for a "
            "token of none). `gap`: something happened that this server cannot read.",
        )},
        parameters=(
            Parameter("Last-Event-ID", "Go on after this event.", {"type": "string"}, "header"),
            Parameter("after", "The same, for clients without headers.", {"type": "string"}),
            Parameter("task", "Only actions of this task.", {"type": "string"}),
            Parameter("trajectory", "Only actions of this trajectory.", {"type": "string"}),
            Parameter(
                "types",
                "Only these types of events, by comma: submitted, granted, finished.",
                {"type": "string"},
            ),
        ),
        problems=(422,),
    ),
    HotEndpoint(
        "get", "/completions", "completions_list", "The log of finished actions", Scope.READ,
        {200: CompletionsResponse},
        parameters=(
            Parameter("after", "`next` of the page before, or `now`.", {"type": "string"}),
            Parameter(
                "limit", "Actions on a page.", {"type": "integer", "minimum": 1, "maximum": 500}
            ),
            WAIT,
        ),
        problems=(410, 422),
    ),
    HotEndpoint(
        "post", "/tasks", "tasks_open", "Declare a task and bind it to a pool", Scope.SUBMIT,
        {201: NAMED}, TaskRequest, problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "post", "/tasks/{id}/pause", "tasks_pause",
        "Grant a task nothing; what runs goes on, what is submitted waits", Scope.OPERATE,
        {202: NAMED}, parameters=(PROJECT,), problems=(404, 413, 422),
    ),
    HotEndpoint(
        "post", "/tasks/{id}/resume", "tasks_resume", "Go on with a task", Scope.OPERATE,
        {202: NAMED}, parameters=(PROJECT,), problems=(404, 413, 422),
    ),
    HotEndpoint(
        "post", "/tasks/{id}/priority", "tasks_priority",
        "Serve all actions of a task at one priority; null: each at its own", Scope.OPERATE,
        {202: NAMED}, PriorityRequest, (PROJECT,), problems=(404, 413, 422),
    ),
    HotEndpoint(
        "post", "/tasks/{id}/cancel", "tasks_cancel",
        "End what a task has now; what is submitted later is accepted", Scope.SUBMIT,
        {202: NAMED}, CancelRequest, (PROJECT,), body_required=False,
        problems=(404, 413, 422),
    ),
    HotEndpoint(
        "post", "/services/{id}/evict", "services_evict",
        "Let a GPU service leave the chunks where it does not work", Scope.OPERATE,
        {202: NAMED}, problems=(404, 413),
    ),
    HotEndpoint(
        "post", "/trajectories", "trajectories_open",
        "Declare a trajectory before its first action", Scope.SUBMIT, {201: NAMED},
        TrajectoryRequest, problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "post", "/trajectories/{id}/finish", "trajectories_finish",
        "End a trajectory: its waiting actions are cancelled, its environment goes",
        Scope.SUBMIT, {200: NAMED, 202: ACCEPTED}, parameters=(PROJECT,), problems=(404, 422),
    ),
    HotEndpoint(
        "put", "/trajectories/{id}/files/{path}", "files_put",
        "Write a file below the workspace of a trajectory", Scope.SUBMIT, {201: WRITTEN}, FILE,
        (PROJECT,), problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "get", "/trajectories/{id}/files/{path}", "files_get",
        "Read a file below the workspace of a trajectory", Scope.READ, {200: FILE},
        parameters=(PROJECT,), problems=(404, 409, 413, 422),
    ),
    HotEndpoint(
        "get", "/status", "status_retrieve", "Queues, capacity and the leader, in numbers",
        Scope.READ, {200: OBJECT},
    ),
    HotEndpoint(
        "get", "/queues", "queues_list",
        "What waits and for what: lines of actions that can only be admitted alike, longest first",
        Scope.READ, {200: QueuesResponse},
        parameters=(
            Parameter(
                "limit", "Longest so many.", {"type": "integer", "minimum": 1, "maximum": 500}
            ),
        ),
        problems=(422,),
    ),
    HotEndpoint(
        "get", "/decisions", "decisions_list",
        "What policies decided lately: candidates, evictions tried, objectives, units",
        Scope.READ, {200: DecisionsResponse},
        parameters=(
            Parameter(
                "limit", "Latest so many.", {"type": "integer", "minimum": 1, "maximum": 256}
            ),
        ),
        problems=(422,),
    ),
)  # fmt: skip

#: Structs that answers and bodies are made of, by the name of their component.
WIRE_STRUCTS: tuple[type, ...] = (
    ActionRequest,
    ActionResponse,
    BatchItemResponse,
    BatchResponse,
    CancelRequest,
    PriorityRequest,
    CompletionsResponse,
    DecisionsResponse,
    LeaseReleaseRequest,
    PriorityRequest,
    QueuesResponse,
    LeaseRenewRequest,
    TaskRequest,
    TrajectoryRequest,
)
