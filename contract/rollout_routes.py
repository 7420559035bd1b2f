"""Routes of rollouts and of the backends of language models."""

from __future__ import annotations

from contract.requests import MAX_WAIT_SECONDS
from contract.rollout_requests import (
    AcknowledgeRequest,
    BackendRequest,
    BalanceRequest,
    RolloutChangeRequest,
    RolloutsChangeRequest,
    RolloutsRequest,
)
from contract.rollout_views import (
    AcceptedRollouts,
    AcknowledgedRollouts,
    BackendPools,
    ChangedBackends,
    ChangedRollout,
    ChangedRollouts,
    RolloutCompletions,
    RolloutList,
    RolloutTurns,
    RolloutView,
)
from contract.route import API_PREFIX, PROJECT, TEXT, Binary, Parameter, Route
from domain.principals import Scope

#: Answers in this form have the members of the JSON answer; arrays of tokens are bytes (`rollout.tokens.packed`).
PACKED_TYPE = "application/vnd.tangram.rollout+msgpack"
MAX_ROLLOUT_COMPLETIONS = 256
MAX_LISTED = 1000
_ROLLOUT = f"{API_PREFIX}/rollouts/{{id}}"
_POOL = f"{API_PREFIX}/backends/{{pool}}"
_BACKEND = f"{_POOL}/{{backend}}"

_WAIT = Parameter(
    "wait",
    "Seconds to wait for the end.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS},
)
_SEGMENTS = Parameter(
    "segments", "`false`: without tokens.", {"type": "string", "enum": ["true", "false"]}
)
_ACCEPT = Parameter(
    "Accept",
    f"`{PACKED_TYPE}`: MessagePack with the same members; arrays of tokens are bytes.",
    TEXT,
    "header",
)


def _limit(most: int) -> Parameter:
    return Parameter("limit", "Most rollouts.", {"type": "integer", "minimum": 1, "maximum": most})


def _change(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{_ROLLOUT}/{verb}",
        operation=f"rollouts_{verb}",
        summary=summary,
        scope=Scope.SUBMIT,
        body=RolloutChangeRequest,
        body_required=False,
        parameters=(PROJECT,),
        responses={200: RolloutView, 202: ChangedRollout},
        errors=(404, 413, 422),
    )


def _change_many(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{API_PREFIX}/rollouts/{verb}",
        operation=f"rollouts_{verb}_many",
        summary=summary,
        scope=Scope.SUBMIT,
        body=RolloutsChangeRequest,
        parameters=(PROJECT,),
        responses={202: ChangedRollouts},
        errors=(404, 413, 422),
    )


def _of_backend(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{_BACKEND}/{verb}",
        operation=f"backends_{verb}",
        summary=summary,
        scope=Scope.OPERATE,
        responses={202: ChangedBackends},
        errors=(404, 413),
    )


ROLLOUTS = (
    Route(
        method="POST",
        path=f"{API_PREFIX}/rollouts",
        operation="rollouts_submit",
        summary="Submit rollouts: some samples of each instance, up to 1,000 together",
        scope=Scope.SUBMIT,
        body=RolloutsRequest,
        responses={202: AcceptedRollouts},
        errors=(404, 409, 413, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/rollouts",
        operation="rollouts_list",
        summary="Rollouts that are not finished, by arrival",
        scope=Scope.READ,
        parameters=(
            PROJECT,
            Parameter("task", "Only of this task.", TEXT),
            Parameter("group", "Only of this group.", TEXT),
            Parameter("door", "Only those that came through this door.", TEXT),
            _limit(MAX_LISTED),
        ),
        responses={200: RolloutList},
        errors=(404, 422),
    ),
    Route(
        method="GET",
        path=f"{API_PREFIX}/rollouts/completions",
        operation="rollouts_completions",
        summary="The log of finished rollouts",
        scope=Scope.READ,
        parameters=(
            Parameter("after", "`next` of the page before, or `now`.", TEXT),
            _limit(MAX_ROLLOUT_COMPLETIONS),
            _WAIT,
            _SEGMENTS,
            _ACCEPT,
        ),
        responses={200: RolloutCompletions},
        errors=(410, 422),
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/rollouts/acknowledge",
        operation="rollouts_acknowledge",
        summary="Delete tokens and artefacts of finished rollouts; may be repeated",
        scope=Scope.SUBMIT,
        body=AcknowledgeRequest,
        responses={200: AcknowledgedRollouts},
        errors=(413, 422),
    ),
    Route(
        method="GET",
        path=_ROLLOUT,
        operation="rollouts_retrieve",
        summary="State of a rollout; its tokens and its reward once it is finished",
        scope=Scope.READ,
        parameters=(PROJECT, _WAIT, _SEGMENTS, _ACCEPT),
        responses={200: RolloutView},
        errors=(404, 410, 422),
    ),
    Route(
        method="GET",
        path=f"{_ROLLOUT}/artefacts/{{path}}",
        operation="rollouts_artefact",
        summary="A file that a stage of a rollout stored",
        scope=Scope.READ,
        parameters=(PROJECT,),
        responses={200: Binary("application/octet-stream", "The bytes of the file.")},
        errors=(404, 410, 422),
    ),
    Route(
        method="GET",
        path=f"{_ROLLOUT}/turns",
        operation="rollouts_turns",
        summary="The responses of the model, each with the messages and tokens before it",
        scope=Scope.READ,
        parameters=(PROJECT, _ACCEPT),
        responses={200: RolloutTurns},
        errors=(404, 410, 422),
    ),
    _change_many(
        "cancel", "Cancel up to 1,000 rollouts, also before they are submitted; may be repeated"
    ),
    _change_many("park", "Keep up to 1,000 rollouts without a lease, from their last turns on"),
    _change_many("resume", "Continue up to 1,000 rollouts that are parked"),
    _change("cancel", "Cancel a rollout, also before it is submitted; may be repeated"),
    _change("park", "Keep a rollout without a lease, from its last turn on"),
    _change("resume", "Continue a rollout that is parked"),
)

_MODEL = f"{API_PREFIX}/trajectories/{{id}}/v1"
_OBJECT = {"type": "object", "additionalProperties": True}

AGENT_CHATS = (
    Route(
        method="POST",
        path=f"{_MODEL}/chat/completions",
        operation="agent_chat_complete",
        summary="A call of a rollout's own agent to its model, in OpenAI's shape: recorded token by token",
        scope=Scope.SUBMIT,
        body=_OBJECT,
        responses={200: Binary("*/*", "A chat completion, or its chunks as server-sent events.")},
        errors=(404, 409, 413, 422),
        streams=True,
        for_agents=True,
    ),
    Route(
        method="GET",
        path=f"{_MODEL}/models",
        operation="agent_chat_models",
        summary="The model of a rollout",
        scope=Scope.SUBMIT,
        responses={200: _OBJECT},
        errors=(404, 409),
        for_agents=True,
    ),
)

BACKENDS = (
    Route(
        method="GET",
        path=f"{API_PREFIX}/backends",
        operation="backends_list",
        summary="Servers of language models, by pool",
        scope=Scope.READ,
        responses={200: BackendPools},
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/backends",
        operation="backends_put",
        summary="Add a server of a language model to a pool, or change it",
        scope=Scope.OPERATE,
        body=BackendRequest,
        responses={202: ChangedBackends},
        errors=(409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{_POOL}/clear",
        operation="backends_clear",
        summary="Remove all backends of a pool; those added next serve the next weights version",
        scope=Scope.OPERATE,
        responses={202: ChangedBackends},
        errors=(404, 413),
    ),
    Route(
        method="DELETE",
        path=_POOL,
        operation="backends_forget",
        summary="Forget an empty pool with its weights version; one that rollouts name or that has seats taken stays",
        scope=Scope.OPERATE,
        responses={202: ChangedBackends},
        errors=(404, 409, 413),
    ),
    Route(
        method="POST",
        path=f"{_POOL}/balance",
        operation="backends_balance",
        summary="Choose how new rollouts are distributed over the backends of a pool",
        scope=Scope.OPERATE,
        body=BalanceRequest,
        responses={202: ChangedBackends},
        errors=(404, 413, 422),
    ),
    Route(
        method="DELETE",
        path=_BACKEND,
        operation="backends_remove",
        summary="Remove a backend; its rollouts sample elsewhere from their next turn on",
        scope=Scope.OPERATE,
        responses={202: ChangedBackends},
        errors=(404,),
    ),
    _of_backend("drain", "Let a backend take no new rollouts"),
    _of_backend("resume", "Let a drained backend take rollouts again"),
)
