"""Bodies of the requests for rollouts and for backends of language models, with the limits that they are checked against."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from contract.requests import Label, Name, Seconds
from domain.action import EnvironmentSpec
from domain.backends import DEFAULT_SEATS, Balance

#: Rollouts of one request: instances times samples.
MAX_ROLLOUTS = 1000
#: Rollouts of one acknowledgement.
MAX_ACKNOWLEDGED = 1000
#: Rollouts of one request that cancels, parks or resumes them.
MAX_CHANGED = 1000
InstanceName = Annotated[str, Meta(min_length=1, max_length=256)]
BackendName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*$(?!\n)", max_length=200)]
_Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class InstanceRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One problem: a name, what the handler needs to know of it, and its environment."""

    id: InstanceName
    data: dict[str, Any] = {}
    #: Instead of the environment of the request.
    environment: EnvironmentSpec | None = None


class LimitsRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits on the time with the lease of a stage, less the waits of its actions; in seconds."""

    init_seconds: Seconds = 600.0
    run_seconds: Seconds = 3600.0
    eval_seconds: Seconds = 1800.0
    #: Of all stages together.
    total_seconds: Seconds | None = None


class RolloutsRequest(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /rollouts``: ``samples`` rollouts of each instance. The samples of an instance are a group."""

    task: Name
    #: Name of the handler: a built-in one, or an entry point ``tangram.rollouts`` of the rollout workers.
    handler: Name
    instances: Annotated[list[InstanceRequest], Meta(min_length=1, max_length=MAX_ROLLOUTS)]
    samples: Annotated[int, Meta(ge=1, le=MAX_ROLLOUTS)] = 1
    project: Name | None = None
    #: Name of the group, for one instance alone; by default one is made for each instance.
    group: Label | None = None
    #: Its language model: a pool of backends (``llm:POOL``) whose seat RUN takes, or ``fleet:NAME``.
    llm: Name | None = None
    #: Rollouts that are trained on together: a fleet arranges them on its workers together.
    batch: Label | None = None
    #: How many those are; 0: the rollouts of this request.
    batch_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: Sampling parameters, as the handler passes them on.
    sampling: dict[str, Any] = {}
    #: Options of the handler.
    options: dict[str, Any] = {}
    environment: EnvironmentSpec | None = None
    limits: LimitsRequest = LimitsRequest()
    #: Most weights versions by which the tokens of one rollout may differ.
    max_version_span: Annotated[int, Meta(ge=0)] | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    metadata: dict[str, Any] = {}


class RolloutChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /rollouts/{id}/cancel`` and of ``/park``."""

    reason: Label = ""


class RolloutsChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /rollouts/cancel``, ``/park`` and ``/resume``: each rollout is changed or refused on its own."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_CHANGED)]
    reason: Label = ""


class AcknowledgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /rollouts/acknowledge``: tokens and artefacts of these rollouts are stored safely elsewhere."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_ACKNOWLEDGED)]


class BackendRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /backends``: adds a server of a language model to a pool, or changes it."""

    pool: Name
    #: Base address, with or without ``/v1``.
    address: Annotated[str, Meta(max_length=2048)]
    #: Unique in its pool; by default host and port of the address.
    name: BackendName | None = None
    #: Rollouts that may use it at once.
    seats: Annotated[int, Meta(ge=1, le=100_000)] = DEFAULT_SEATS
    #: ``prorl``, ``vllm``, ``sglang``, ``openai``; empty: it is probed.
    dialect: Annotated[str, Meta(max_length=32)] = ""
    #: Name of the model in its requests; empty: the one that it lists first.
    model: Annotated[str, Meta(max_length=256)] = ""
    #: Version of its weights; 0: the present one of its pool.
    weights_version: _Version = 0


class BalanceRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /backends/{pool}/balance``."""

    balance: Balance
