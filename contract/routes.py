"""Routes of the gateway: one table for the handlers that serve them and for the OpenAPI document.

The gateway binds a handler to each route by its operation; `tangram_web.lib.schema` renders the
same routes. A facade has a table of its own and no prefix of ours.
"""

from __future__ import annotations

from typing import Any

from contract.batch_routes import BATCHES
from contract.file_routes import FILES, LEAST_BYTES
from contract.fleet_routes import FLEETS
from contract.image_routes import IMAGES
from contract.port_routes import PORT_SOCKETS, PORTS
from contract.process_routes import PROCESSES
from contract.receipts import (
    AcceptedAction,
    ChangedTask,
    EvictedService,
    ForkedTrajectories,
    OpenedTask,
    ParkedEnvironment,
    RemovedSnapshot,
    RenewedLease,
    SignedObject,
    SnapshotDetails,
    SnapshotList,
    TrajectoryReceipt,
)
from contract.requests import (
    MAX_WAIT_SECONDS,
    ActionRequest,
    BatchRequest,
    CancelRequest,
    LeaseReleaseRequest,
    LeaseRenewRequest,
    PriorityRequest,
    SnapshotRequest,
    TaskRequest,
    TrajectoryForkRequest,
    TrajectoryRenewRequest,
    TrajectoryRequest,
)
from contract.responses import (
    ActionResponse,
    BatchResponse,
    CompletionsResponse,
    DecisionsResponse,
    QueuesResponse,
)
from contract.rollout_routes import AGENT_CHATS, BACKENDS, ROLLOUTS
from contract.route import (
    API_PREFIX,
    IDEMPOTENCY_KEY,
    PROJECT,
    TEXT,
    WEBSOCKET,
    Binary,
    Body,
    Parameter,
    Route,
)
from contract.selector_routes import SELECTORS
from contract.session_routes import ATTACH, SESSIONS
from contract.status import SystemStatus
from domain.principals import Scope

#: Most completions on a page, most wait queues, most decisions.
MAX_COMPLETIONS = 500
MAX_QUEUES = 500
MAX_DECISIONS = 256


def _limit(most: int, description: str) -> Parameter:
    return Parameter("limit", description, {"type": "integer", "minimum": 1, "maximum": most})


WAIT = Parameter(
    "wait",
    "Seconds to wait for the end of the action, or for the grant of a lease.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS},
)
PREFER = Parameter(
    "Prefer",
    "`largest-result=BYTES`: a larger result that has a stored body comes shortened, with `stored_body`, where there is an"
    " object store: `POST …/downloads` has the whole one.",
    TEXT,
    "header",
)
_READINESS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["ready", "not ready"]},
        "checks": {"type": "object", "additionalProperties": {"type": "string"}},
        "facts": {"type": "object", "additionalProperties": True},
    },
    "required": ["status"],
}
_LIVENESS: dict[str, Any] = {
    "type": "object",
    "properties": {"status": {"type": "string", "enum": ["ok"]}},
    "required": ["status"],
}

ACTIONS = (
    Route(
        method="POST",
        path=f"{API_PREFIX}/actions",
        operation="actions_submit",
        summary="Submit an action",
        scope=Scope.SUBMIT,
        body=ActionRequest,
        parameters=(WAIT, PREFER),
        responses={200: ActionResponse, 202: AcceptedAction},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/actions/batch",
        operation="actions_submit_batch",
        summary="Submit up to 1,000 actions; each is accepted or refused on its own",
        scope=Scope.SUBMIT,
        body=BatchRequest,
        responses={202: BatchResponse},
        errors=(409, 413, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/actions/{{id}}",
        operation="actions_retrieve",
        summary="State of an action, and why it waits",
        scope=Scope.READ,
        parameters=(
            WAIT,
            PREFER,
            Parameter(
                "include",
                "`request`: what it was asked to run, its files and its submitter, with secrets masked.",
                {"type": "string", "enum": ["request"]},
            ),
        ),
        responses={200: ActionResponse},
        errors=(404, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/actions/{{id}}/stream",
        operation="actions_stream",
        summary="Output of a command while it runs; or the response of a streamed call, for one reader",
        scope=Scope.READ,
        parameters=(
            Parameter("Last-Event-ID", "Continue after this event of a command.", TEXT, "header"),
            Parameter("after", "The same, for clients without headers.", TEXT),
            Parameter("follow", "`false`: what there is now, without waiting for more.", TEXT),
        ),
        responses={
            200: Binary(
                "*/*",
                "For `exec`: server-sent events `stdout`, `stderr`, `gap`, `restart`, and `end` with the outcome. For "
                '`call` with `"stream": true`: status, headers and body of the API.',
            )
        },
        errors=(404, 409, 422),
        streams=True,
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/actions/{{id}}/downloads",
        operation="actions_download_url",
        summary="Store a large result as MessagePack, and say where it can be read",
        scope=Scope.READ,
        parameters=(LEAST_BYTES,),
        responses={201: SignedObject},
        errors=(404, 409, 410, 422, 507),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/actions/{{id}}/cancel",
        operation="actions_cancel",
        summary="Cancel an action; may be repeated",
        scope=Scope.SUBMIT,
        body=CancelRequest,
        body_required=False,
        responses={200: ActionResponse, 202: AcceptedAction},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/leases/{{id}}/renew",
        operation="leases_renew",
        summary="Renew a lease",
        scope=Scope.SUBMIT,
        body=LeaseRenewRequest,
        body_required=False,
        responses={200: RenewedLease},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/leases/{{id}}/release",
        operation="leases_release",
        summary="Release a lease; may be repeated",
        scope=Scope.SUBMIT,
        body=LeaseReleaseRequest,
        body_required=False,
        responses={200: ActionResponse, 202: ActionResponse},
        errors=(404, 409, 413, 422),
    ),
)

FEEDS = (
    Route(
        method="GET",
        path=f"{API_PREFIX}/events",
        operation="events_stream",
        summary="Changes of actions as server-sent events",
        scope=Scope.READ,
        parameters=(
            Parameter("Last-Event-ID", "Continue after this event.", TEXT, "header"),
            Parameter("after", "The same, for clients without headers.", TEXT),
            Parameter("task", "Only actions of this task.", TEXT),
            Parameter("trajectory", "Only actions of this trajectory.", TEXT),
            Parameter(
                "types",
                "Only these types of events, by comma: submitted, granted, finished.",
                TEXT,
            ),
        ),
        responses={
            200: Binary(
                "text/event-stream",
                "`submitted`, `granted` and `finished` of the actions of the token's project (of all, "
                "for a token of none). `gap`: an event that this server cannot read is missing.",
            )
        },
        errors=(422,),
        streams=True,
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/completions",
        operation="completions_list",
        summary="The log of finished actions",
        scope=Scope.READ,
        parameters=(
            Parameter("after", "`next` of the page before, or `now`.", TEXT),
            _limit(MAX_COMPLETIONS, "Actions on a page."),
            WAIT,
        ),
        responses={200: CompletionsResponse},
        errors=(410, 422),
    ),
)

TASKS = (
    Route(
        method="POST",
        path=f"{API_PREFIX}/tasks",
        operation="tasks_open",
        summary="Declare a task and bind it to a pool",
        scope=Scope.SUBMIT,
        body=TaskRequest,
        responses={201: OpenedTask},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/tasks/{{id}}/pause",
        operation="tasks_pause",
        summary="Pause a task: its running actions continue, its waiting ones get no grant",
        scope=Scope.OPERATE,
        parameters=(PROJECT,),
        responses={202: ChangedTask},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/tasks/{{id}}/resume",
        operation="tasks_resume",
        summary="Resume a paused task",
        scope=Scope.OPERATE,
        parameters=(PROJECT,),
        responses={202: ChangedTask},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/tasks/{{id}}/priority",
        operation="tasks_priority",
        summary="Serve all actions of a task at one priority; null: each at its own",
        scope=Scope.OPERATE,
        body=PriorityRequest,
        parameters=(PROJECT,),
        responses={202: ChangedTask},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/tasks/{{id}}/cancel",
        operation="tasks_cancel",
        summary="Cancel the present actions of a task; later submissions are accepted",
        scope=Scope.SUBMIT,
        body=CancelRequest,
        body_required=False,
        parameters=(PROJECT,),
        responses={202: ChangedTask},
        errors=(404, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/services/{{id}}/evict",
        operation="services_evict",
        summary="Evict a GPU service from the chunks on which no action runs",
        scope=Scope.OPERATE,
        responses={202: EvictedService},
        errors=(404, 413),
    ),
)

TRAJECTORIES = (
    Route(
        method="POST",
        path=f"{API_PREFIX}/trajectories",
        operation="trajectories_open",
        summary="Declare a trajectory before its first action, or fork one",
        scope=Scope.SUBMIT,
        body=(TrajectoryRequest, TrajectoryForkRequest),
        responses={201: (TrajectoryReceipt, ForkedTrajectories)},
        errors=(404, 409, 413, 422, 507),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/trajectories/{{id}}/finish",
        operation="trajectories_finish",
        summary="Finish a trajectory: its actions are cancelled, its environment is removed",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        responses={200: TrajectoryReceipt, 202: TrajectoryReceipt},
        errors=(404, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/trajectories/{{id}}/renew",
        operation="trajectories_renew",
        summary="Move the end of an open trajectory, pause or resume it",
        scope=Scope.SUBMIT,
        body=TrajectoryRenewRequest,
        parameters=(PROJECT,),
        responses={200: TrajectoryReceipt},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/trajectories/{{id}}/snapshots",
        operation="snapshots_take",
        summary="Keep the files of a trajectory's environment under a name of its project",
        scope=Scope.SUBMIT,
        body=SnapshotRequest,
        parameters=(PROJECT,),
        responses={201: SnapshotDetails},
        errors=(404, 409, 410, 413, 422, 507),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/trajectories/{{id}}/park",
        operation="trajectories_park",
        summary="Freeze an idle environment and give back its page cache, until its next action",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        responses={200: ParkedEnvironment},
        errors=(404, 409, 410, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/snapshots",
        operation="snapshots_list",
        summary="Snapshots of a project",
        scope=Scope.READ,
        parameters=(PROJECT,),
        responses={200: SnapshotList},
        errors=(404, 422),
    ),
    Route(
        method="DELETE",
        path=f"{API_PREFIX}/snapshots/{{id}}",
        operation="snapshots_remove",
        summary="Remove a snapshot; environments that began from it go on",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        responses={200: RemovedSnapshot},
        errors=(404, 422),
    ),
)

STATUS = (
    Route(
        method="GET",
        path="/livez",
        operation="livez",
        summary="Whether this web process answers",
        scope=None,
        responses={200: _LIVENESS},
    ),
    Route(
        method="GET",
        path="/readyz",
        operation="readyz",
        summary="Whether actions can be accepted and run",
        scope=None,
        parameters=(Parameter("verbose", "Show every check, and facts about the leader.", TEXT),),
        responses={200: _READINESS, 503: _READINESS},
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/status",
        operation="status_retrieve",
        summary="Queues, capacity and the leader, in numbers",
        scope=Scope.READ,
        responses={200: SystemStatus},
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/queues",
        operation="queues_list",
        summary="Wait queues, longest first: actions with equal needs, and why the first one waits",
        scope=Scope.READ,
        parameters=(_limit(MAX_QUEUES, "Number of queues."),),
        responses={200: QueuesResponse},
        errors=(422,),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/decisions",
        operation="decisions_list",
        summary="Recent decisions of policies: candidates, evictions tried, objectives, units",
        scope=Scope.READ,
        parameters=(_limit(MAX_DECISIONS, "Number of decisions."),),
        responses={200: DecisionsResponse},
        errors=(422,),
    ),
)

#: Websockets: their ``method`` is `WEBSOCKET`, in the OpenAPI document a GET that is answered with 101.
SOCKETS: tuple[Route, ...] = (ATTACH, *PORT_SOCKETS)

ROUTES: tuple[Route, ...] = (
    *ACTIONS, *FEEDS, *TASKS, *TRAJECTORIES, *FILES, *PORTS, *PROCESSES, *SESSIONS, *IMAGES,
    *ROLLOUTS, *BATCHES, *AGENT_CHATS, *BACKENDS, *FLEETS, *SELECTORS, *STATUS,
)  # fmt: skip

__all__ = [
    "ACTIONS",
    "API_PREFIX",
    "FEEDS",
    "FILES",
    "IDEMPOTENCY_KEY",
    "IMAGES",
    "MAX_COMPLETIONS",
    "MAX_DECISIONS",
    "MAX_QUEUES",
    "PROCESSES",
    "PROJECT",
    "ROUTES",
    "SESSIONS",
    "SOCKETS",
    "STATUS",
    "TASKS",
    "TEXT",
    "TRAJECTORIES",
    "WAIT",
    "WEBSOCKET",
    "Binary",
    "Body",
    "Parameter",
    "Route",
]  # fmt: skip
