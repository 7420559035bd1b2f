"""The request of a comparison, checked without loading the simulator.

The web process reads requests and must start fast; `simulator.job` plays them in another process.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from domain.errors import InvalidRequest
from domain.inventory import Config, ResourceInventory
from domain.policies import known_policies, parse_policy

#: Baselines of a comparison: the names of `simulator.compare.BASELINES`.
RIVALS: Final = (
    "kubernetes", "kubernetes(110)", "kubernetes(timeouts)", "kubernetes(memory)", "unmanaged",
)  # fmt: skip
#: Unit counts for which a comparison shows a policy with a parameter (ARL-Tangram §6.4).
COMPARED_COUNTS: Final = (4, 16)
#: Simulated actions, over all policies and seeds of one request.
MOST_ACTIONS: Final = 1_000_000


def compared_policies() -> tuple[str, ...]:
    """Return the policies of the core that a comparison shows by default; of a bounded one the default bound."""
    return tuple(
        form.replace("(k)", f"({count})")
        for form in known_policies()
        if not form.endswith("(p)")
        for count in (COMPARED_COUNTS if form.endswith("(k)") else COMPARED_COUNTS[:1])
    )


Workload = Literal["ai-coding", "deep-search", "recorded"]


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A declared cluster that serves a recorded window; its one pool is called ``default``."""

    config: Config
    nodes: Annotated[int, Meta(ge=1, le=4096)]
    #: Of each node.
    cores: Annotated[int, Meta(ge=1, le=4096)]
    memory_gib: Annotated[int, Meta(ge=1, le=65536)]
    #: Of all nodes together.
    gpus: Annotated[int, Meta(ge=0, le=32768)] = 0
    gpu_memory_bytes: Annotated[int, Meta(ge=1)] = 80 * 2**30
    #: Service → seconds that a restore of it takes.
    restores: dict[str, Annotated[float, Meta(ge=0)]] = {}


class ChangedMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One member of the configuration in which variants differ; values as text, empty where there is none."""

    kind: str
    name: str
    member: str = ""
    before: str = ""
    after: str = ""
    #: No simulation shows it, see `SimulationRequest.untold`.
    played: bool = True


class SimulationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request: equal requests have equal results."""

    workload: Workload = "ai-coding"
    policies: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    seeds: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(min_length=1, max_length=5)
    ] = (0,)
    #: Trajectories of an RL step, and RL steps. A recorded window has its own.
    batch: Annotated[int, Meta(ge=1, le=2048)] = 64
    steps: Annotated[int, Meta(ge=1, le=10)] = 1
    nodes: Annotated[int, Meta(ge=1, le=512)] = 4
    cores: Annotated[int, Meta(ge=1, le=1024)] = 64
    memory_gib: Annotated[int, Meta(ge=1, le=65536)] = 2400
    #: ai-coding: how long test suites take at the end, and whether they may be resized.
    rewards: Literal["light", "medium", "heavy"] = "medium"
    malleable: bool = False
    #: recorded: units of cluster-wide resources.
    limits: dict[str, Annotated[int, Meta(ge=1)]] = {}
    #: recorded: clusters that stand among ``policies`` by these names, each with its own policy.
    variants: dict[str, Variant] = {}
    #: Variants: what each node of the pool has, by name; none: equal ones, as a variant says.
    machines: dict[str, dict[str, ResourceInventory]] = {}
    #: Variants: journal time at which the window begins. What the trace holds of the time before is
    #: played under the first variant's configuration, and does not count.
    counts_from: Annotated[float, Meta(ge=0)] | None = None
    #: Variants: cluster-wide resource → milli-units of each quota of the first variant that count at
    #: the beginning of the trace.
    used: dict[str, tuple[Annotated[int, Meta(ge=0)], ...]] = {}
    #: Assumptions about unknown values, as sentences for the page.
    assumed: tuple[str, ...] = ()
    #: What of a question no simulation tells, for people.
    untold: tuple[str, ...] = ()
    #: Variants: what differs, for people; and the wall clock of the window's end with its length.
    changed: tuple[ChangedMember, ...] = ()
    window_ends: float | None = None
    window_seconds: float | None = None


def read_request(data: Any) -> SimulationRequest:
    """Return the request that ``data`` is. Raises InvalidRequest saying what is wrong with it."""
    try:
        request = msgspec.convert(data, SimulationRequest)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise InvalidRequest(text, pointer=f"/{where.rstrip('`')}" if where else "") from None
    for policy in request.policies:
        if policy not in RIVALS and policy not in request.variants:
            parse_policy(policy, "/policies")
    for name in ("policies", "seeds"):
        if len(set(getattr(request, name))) < len(getattr(request, name)):
            raise InvalidRequest(f"each of the {name} once", pointer=f"/{name}")
    return request
