"""Request bodies and responses of nodes and node groups over REST."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from tangram_web.pools.api.serializers import StrictSerializer


class DrainBody(StrictSerializer):
    """The reason of a drain, and what becomes of trajectories."""

    reason = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")
    finishing = serializers.BooleanField(
        required=False, default=False, help_text="Its trajectories continue until they end; a drain without this stays as it is.",
    )  # fmt: skip


class NodeForgottenView(serializers.Serializer[Any]):
    """Whether a node is forgotten. If not, the next leader forgets it unless it is alive then."""

    node = serializers.CharField()
    forgotten = serializers.BooleanField()


class NodeDrainView(serializers.Serializer[Any]):
    """Whether a node is drained."""

    node = serializers.CharField()
    drained = serializers.BooleanField()
    finishing = serializers.BooleanField(help_text="Its trajectories continue until they end.")
    reason = serializers.CharField()


class NodeInstanceView(serializers.Serializer[Any]):
    """One node worker of a group, as its engine lists it."""

    name = serializers.CharField(help_text="That of its node.")
    state = serializers.ChoiceField(choices=["pending", "running", "unknown", "ending", "failed"])
    handle = serializers.CharField(help_text="Name of the instance in its engine.")
    machine = serializers.CharField()
    reason = serializers.CharField(help_text="Why it waits, failed or ends.")
    restarts = serializers.IntegerField(help_text="By its engine.")
    ends_at = serializers.FloatField(
        allow_null=True, help_text="When its engine will end it, in seconds since the epoch."
    )
    joined = serializers.BooleanField(help_text="Its node sends heartbeats.")
    drained = serializers.BooleanField()
    outdated = serializers.BooleanField(help_text="Its shape is not that of the group.")


class NodeGroupEstimateView(serializers.Serializer[Any]):
    """Why a group with bounds grows, stays or shrinks."""

    wanted = serializers.IntegerField(help_text="Nodes that it should have.")
    more = serializers.IntegerField(help_text="So many more nodes would lower the mean ACT …")
    gain = serializers.FloatField(help_text="… by this share.")
    act_seconds = serializers.FloatField(
        help_text="Predicted mean ACT of what waits and arrives, without more nodes."
    )
    start_seconds = serializers.FloatField(
        help_text="From the launch of an instance until its node joins."
    )
    reason = serializers.CharField()


class NodeGroupView(serializers.Serializer[Any]):
    """A node group, as its keeper found it last."""

    name = serializers.CharField()
    spec = serializers.DictField(help_text="The declaration that is kept.")
    at = serializers.CharField(help_text="Time of the latest change, RFC 3339.")
    wanted = serializers.IntegerField()
    ready = serializers.IntegerField(help_text="Nodes that have joined and take work.")
    instances = NodeInstanceView(many=True)
    error = serializers.CharField(help_text="What failed, with its cure; empty: nothing.")
    problems = serializers.ListField(
        child=serializers.CharField(),
        help_text="What keeps the engine from placing node workers, each with its cure.",
    )
    silent = serializers.DictField(
        child=serializers.CharField(),
        help_text="Machines that do not answer, each with why and the cure: what runs there is not known.",
    )
    rollout = serializers.CharField(help_text="How far the replacement of outdated instances is.")
    estimate = NodeGroupEstimateView(
        allow_null=True, help_text="Of a group with bounds, once the scheduler said what waits."
    )


class NodeGroupsView(serializers.Serializer[Any]):
    """All node groups."""

    groups = NodeGroupView(many=True)
