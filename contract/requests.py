"""Request bodies of the hot endpoints, with the limits that they are checked against."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from domain.action import EnvironmentSpec, ExecSpec, Kind, LeaseSpec
from domain.bodies import StoredBody
from domain.forks import MAX_FORKS, OnBusy
from domain.resources import UnitRange
from domain.rewards import RewardRule

#: Names that end up in keys, paths and labels.
#: ``$`` alone would accept a trailing line break.
MAX_NAME_LENGTH = 128
Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*$(?!\n)", max_length=MAX_NAME_LENGTH)
]
Label = Annotated[str, Meta(max_length=128)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
LeaseSeconds = Annotated[float, Meta(ge=0.1, le=86_400)]
Count = int | float

MAX_BATCH = 1000
#: Key in the scope of an ASGI request: the template of the route that serves it
#: (``/api/v1/actions/{id}``). Metrics count requests by it.
ROUTE = "tangram.route"
#: Key in the scope of an ASGI request: name of the facade that it came through.
DOOR = "tangram.door"
#: Key in the scope of a request whose web server takes a response as a whole (`gateway.http.ServerExchange`).
EXCHANGE = "tangram.exchange"
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_WAIT_SECONDS = 60.0


class CallRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One request to a service or API (``service:reward-7b``, ``api:search``)."""

    target: Name
    method: Annotated[str, Meta(max_length=16)] = "POST"
    #: Relative to the base URL, with the query, percent-encoded.
    path: str = "/"
    headers: dict[str, str] = {}
    #: Sent as JSON; ``body`` is sent unchanged.
    json: Any | msgspec.UnsetType = msgspec.UNSET
    body: str | None = None
    #: Forward the response while it arrives, at ``GET /actions/{id}/stream``.
    stream: bool = False
    #: Set by Tangram in place of a large ``body``; refused in requests.
    stored_body: StoredBody | None = None


class ActionRequest(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /actions``."""

    task: Name
    kind: Kind
    project: Name | None = None
    trajectory: Name | None = None
    pool: Name | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    step: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    group: Label | None = None
    family: Label | None = None
    environment: EnvironmentSpec | None = None
    #: Resource → feasible unit counts: a count, a list of counts, or ``{"min": …, "max": …}``.
    cost: dict[Name, Count | list[Count] | UnitRange] = {}
    key: Name | None = None
    duration_seconds: Seconds | None = None
    elasticity: dict[str, float] | None = None
    malleable: bool = False
    exec: ExecSpec | None = None
    call: CallRequest | None = None
    lease: LeaseSpec | None = None
    reward: RewardRule | None = None
    timeout_seconds: Seconds | None = None
    queue_timeout_seconds: Seconds | None = None
    replay_safe: bool = False
    #: Actions of the trajectory that will follow this one, as the trainer expects.
    remaining_actions: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    metadata: dict[str, Any] = {}


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /actions/batch``: up to 1,000 actions, each accepted or refused on its own."""

    actions: list[msgspec.Raw]


class TrajectoryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /trajectories``: declares a trajectory before its first action."""

    id: Name
    task: Name
    project: Name | None = None
    pool: Name | None = None
    environment: EnvironmentSpec | None = None
    metadata: dict[str, Any] = {}
    #: At the end of its time to live it is paused for so long before it ends.
    pause_seconds: Seconds | None = None


class TrajectoryRenewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /trajectories/{id}/renew``: its time to live begins again."""

    ttl_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    #: The end that it has stays when it is later.
    only_later: bool = False
    #: Whether it counts as paused; actions run in it in any case.
    paused: bool | None = None


class TrajectoryForkRequest(
    msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, rename={"source": "from"}
):
    """Body of ``POST /trajectories`` with ``from``: opens forks of a trajectory.

    Each begins with the files of its environment, in the same task and pool, with the same environment.
    """

    #: Name of the trajectory that is forked.
    source: Name
    #: Number of forks; by default as many as ``names``.
    count: Annotated[int, Meta(ge=1, le=MAX_FORKS)] | None = None
    #: Names of the forks; by default they are made from that of the source.
    names: Annotated[list[Name], Meta(min_length=1, max_length=MAX_FORKS)] | None = None
    project: Name | None = None
    #: What happens when a command runs or waits in the environment, or a program in it writes a file.
    on_busy: OnBusy = "refuse"
    metadata: dict[str, Any] = {}


class MoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Renames a file or directory of an environment."""

    source: str
    target: str
    #: Whether a file that exists at the target is replaced.
    replace: bool = False


class FileModeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Sets the permissions of a file or directory, in octal: ``0755``."""

    mode: Annotated[str, Meta(pattern="^[0-7]{1,4}$")]


#: Largest content that S3 takes by one request.
MAX_STORED_BYTES = 5 * 2**30


class UploadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /uploads``: a content that the client has."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_STORED_BYTES)]
    #: ``file``: a file or the archive of a tree; ``image``: the archive of an image, with a token of all projects.
    kind: Literal["file", "image"] = "file"


class SnapshotRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /trajectories/{id}/snapshots``: keeps the files of its environment under a name."""

    name: Name
    #: As for forks.
    on_busy: OnBusy = "refuse"


class TaskRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /tasks``: declares a task and binds it to a pool."""

    id: Name
    project: Name | None = None
    pool: Name | None = None
    metadata: dict[str, Any] = {}


class PriorityRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Sets one priority for all actions of a task; null: each action keeps its own."""

    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None


class LeaseRenewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Renews a lease for ``ttl_seconds``, by default the declared time to live."""

    ttl_seconds: LeaseSeconds | None = None


class LeaseReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Releases a lease; may report the API's status, which then paces all calls of that API."""

    #: HTTP status that the API returned; None: not reported.
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    retry_after_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    #: The leased resource that the status belongs to; by default all of them.
    resource: Name | None = None


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Cancels an action."""

    reason: Label = "cancelled by request"
