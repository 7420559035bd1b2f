"""What the keeper of node groups launched and found, as it stores it in Redis for pages and for its successor."""

from __future__ import annotations

import msgspec

from domain.node_groups import NodeGroupSpec


class InstanceReport(msgspec.Struct, omit_defaults=True):
    """One node worker, as its engine lists it."""

    name: str
    #: ``pending``, ``running``, ``unknown``, ``ending`` or ``failed``.
    state: str
    #: Name of the instance in the engine.
    handle: str
    machine: str = ""
    #: Why it waits, failed or ends.
    reason: str = ""
    restarts: int = 0
    #: Wall clock, seconds since the epoch: the engine will end it then.
    ends_at: float | None = None
    #: Its node has joined and sends heartbeats.
    joined: bool = False
    drained: bool = False
    #: It was launched with another shape than the group has now.
    outdated: bool = False
    #: Digest of the shape with which it was launched.
    fingerprint: str = ""


class NodeGroupEstimate(msgspec.Struct, omit_defaults=True):
    """Why a group with bounds grows, stays or shrinks."""

    #: Nodes that it should have.
    wanted: int
    #: So many more nodes would lower the mean ACT …
    more: int = 0
    #: … by this share.
    gain: float = 0.0
    #: Predicted mean ACT with the nodes that it has and those on their way.
    act_seconds: float = 0.0
    #: From the launch of an instance until its node joins.
    start_seconds: float = 0.0
    reason: str = ""


class NodeGroupReport(msgspec.Struct, omit_defaults=True):
    """One group."""

    #: As it is kept: the former one until all instances of a former engine have ended, and that of a deleted group.
    spec: NodeGroupSpec
    #: Wall clock, RFC 3339.
    at: str = ""
    wanted: int = 0
    #: Nodes that have joined and take work.
    ready: int = 0
    instances: list[InstanceReport] = []
    #: What failed, with its cure; empty: nothing.
    error: str = ""
    #: Nodes whose launch was asked for and that are not forgotten yet.
    launched: list[str] = []
    #: Of a group with bounds.
    estimate: NodeGroupEstimate | None = None
    #: What keeps the engine from placing node workers, each with its cure, as its launcher said last.
    problems: list[str] = []
    #: Machines that do not answer: name → why, with the cure.
    silent: dict[str, str] = {}
    #: How far the replacement of outdated instances is, and what it waits for; empty: there is none.
    rollout: str = ""
    #: Since when fewer nodes than wanted have joined (wall clock, RFC 3339); empty: they have.
    below_since: str = ""
    #: The longest time from the launch of an instance until its node joined; 0: none was seen.
    launch_seconds: float = 0.0
