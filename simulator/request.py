"""A comparison as somebody asks for it: what is allowed, checked without loading the simulator.

The web process reads requests and must start fast; `simulator.job` plays them in another process.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from domain.errors import InvalidRequest
from domain.policies import parse_policy

#: Rivals that are modelled without the core, as `simulator.compare.BASELINES` has them; no workload
#: here calls models, so those that serve them are left out.
RIVALS: Final = ("kubernetes", "kubernetes(110)", "unmanaged")
#: Simulated actions, over all policies and seeds of one request.
MOST_ACTIONS: Final = 1_000_000

Workload = Literal["ai-coding", "deep-search", "recorded"]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to simulate: equal requests have equal results."""

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


def read_request(data: Any) -> Request:
    """Return the request that ``data`` is. Raises InvalidRequest saying what is wrong with it."""
    try:
        request = msgspec.convert(data, Request)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise InvalidRequest(text, pointer=f"/{where.rstrip('`')}" if where else "") from None
    for policy in request.policies:
        if policy not in RIVALS:
            parse_policy(policy, "/policies")
    for name in ("policies", "seeds"):
        if len(set(getattr(request, name))) < len(getattr(request, name)):
            raise InvalidRequest(f"each of the {name} once", pointer=f"/{name}")
    return request
