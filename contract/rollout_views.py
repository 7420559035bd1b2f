"""Bodies of the answers about rollouts and backends of language models."""

from __future__ import annotations

from typing import Any

import msgspec

from contract.responses import ProblemDetails
from contract.rollout_status import BackendStatus
from domain.rollouts import RolloutOutcome, RolloutState, StageTimes


class AcceptedRollout(msgspec.Struct, omit_defaults=True):
    """A rollout that was accepted."""

    id: str
    instance: str
    sample: int = 0
    group: str | None = None


class AcceptedRollouts(msgspec.Struct):
    """The rollouts of one request, by instance, then by sample."""

    rollouts: list[AcceptedRollout]


class SegmentView(msgspec.Struct, omit_defaults=True):
    """Tokens to train on: a prompt and what follows it. The lists after the prompt have equal lengths."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1: sampled by the model.
    loss_mask: list[int]
    #: Null where an engine of a turn gave none; 0 where the mask is 0.
    logprobs: list[float] | None
    #: -1 where the mask is 0.
    weights_version: list[int]


class TurnView(msgspec.Struct, omit_defaults=True):
    """One response of the model, and what was added to its conversation before it."""

    #: The response as a message of OpenAI's chat completions.
    message: dict[str, Any]
    #: Tokens between the response that it follows and this one; the whole prompt where it follows none.
    context_ids: list[int]
    response_ids: list[int]
    #: Null where the engine gave none.
    logprobs: list[float] | None
    weights_version: int
    #: ``stop``, ``length`` or what the engine calls it.
    finish: str = ""
    #: As ``GET /backends`` names it to the reader; empty: that reader may not know the name, or it is unknown.
    backend: str = ""
    #: Number of the turn that it continues, counted from 0; null: it begins a segment.
    follows: int | None = None
    #: The messages that `context_ids` encodes; none in logs of version 0.1.
    asked: list[dict[str, Any]] = []
    #: Schemas of the tools that the prompt lists, of a turn that begins a segment.
    tools: list[dict[str, Any]] = []


class RolloutTurns(msgspec.Struct, omit_defaults=True):
    """The turns of a rollout since its environment was prepared last, finished or not."""

    id: str
    turns: list[TurnView]
    #: What RUN returned; empty before its end.
    value: dict[str, Any] = {}
    #: Stage whose error ended the rollout.
    failed_stage: str = ""


class ArtefactView(msgspec.Struct, omit_defaults=True):
    """A file that a stage stored, as a patch; its bytes are at ``/rollouts/{id}/artefacts/{name}``."""

    name: str
    bytes: int
    facts: dict[str, Any] = {}


class RolloutView(msgspec.Struct, kw_only=True):
    """State of a rollout, with its result once it is finished."""

    id: str
    state: RolloutState
    outcome: RolloutOutcome | None = None
    reward: float | None = None
    #: Why there is no reward, or why the rollout did not complete.
    reason: str = ""
    project: str = ""
    task: str = ""
    handler: str = ""
    instance: str = ""
    group: str | None = None
    sample: int = 0
    #: Pool of backends whose seat RUN takes.
    llm: str = ""
    priority: int = 0
    #: Why no worker has it, and how many rollouts are assigned before it.
    waiting: str = ""
    position: int | None = None
    #: Stage that it is in; null between two stages, and when no worker has it.
    stage: str | None = None
    #: It waits for the lease of its stage.
    queued: bool = False
    #: Action that it awaits.
    awaited: str = ""
    worker: str = ""
    #: Counts its assignments to workers.
    attempt: int = 0
    #: Stages that began.
    times: list[StageTimes] = []
    queue_seconds: float | None = None
    total_seconds: float | None = None
    turns: int = 0
    #: Tokens so far, while it is not finished.
    tokens: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    #: Weights versions of its first and its last token.
    weights_versions: tuple[int, int] | None = None
    #: Null while it is not finished, when they were not asked for, and after the acknowledgement.
    segments: list[SegmentView] | None = None
    #: Why the log cannot be read: what comes from it is absent.
    log_problem: str = ""
    artefacts: list[ArtefactView] = []
    #: What the handler added to the result.
    detail: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    door: str = ""
    submitted_at: str | None = None
    finished_at: str | None = None


class RolloutList(msgspec.Struct):
    """Rollouts that are not finished, by arrival."""

    items: list[RolloutView]
    #: There are more than the limit.
    more: bool = False


class RolloutCompletions(msgspec.Struct):
    """A page of the log of finished rollouts; ``next`` is the cursor of the following page."""

    items: list[RolloutView]
    next: str
    more: bool = False


class ChangedRollout(msgspec.Struct):
    """A rollout and what was asked for it."""

    id: str
    asked: str


class RolloutChangeItem(msgspec.Struct, omit_defaults=True):
    """What was asked for one rollout of a request, in the order of its ids."""

    id: str
    #: 202: it is asked; 200: the rollout is finished, and nothing changes; 404: there is none.
    status: int
    #: Of a finished rollout.
    outcome: RolloutOutcome | None = None
    problem: ProblemDetails | None = None


class ChangedRollouts(msgspec.Struct):
    """Results of a request that changes several rollouts, one for each id."""

    asked: str
    items: list[RolloutChangeItem]


class AcknowledgedRollouts(msgspec.Struct):
    """Rollouts whose tokens and artefacts are deleted now; those that are not finished, or unknown, are left out."""

    ids: list[str]


class BackendPoolView(msgspec.Struct):
    """The backends of one pool."""

    pool: str
    #: Version of the weights that backends added next get.
    weights_version: int
    backends: list[BackendStatus]


class BackendPools(msgspec.Struct):
    """All pools of backends."""

    pools: list[BackendPoolView]


class ChangedBackends(msgspec.Struct):
    """A pool whose change is accepted."""

    pool: str
    #: Name of the backend; empty: all of the pool.
    backend: str = ""
