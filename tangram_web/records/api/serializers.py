"""REST representations of the history."""

from __future__ import annotations

from typing import Any

import msgspec
from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers

from contract.responses import ActionResponse
from tangram_web.records.models import ActionRecord, NodeAvailability, TrajectoryStatus
from tangram_web.records.selectors import view_of


class ActionListView(serializers.BaseSerializer[ActionRecord]):
    """An action as the hot endpoints show it; lists leave ``result`` empty."""

    def to_representation(self, instance: ActionRecord) -> dict[str, Any]:
        """Render a row as `ActionResponse`."""
        shown: dict[str, Any] = msgspec.to_builtins(view_of(instance, with_result=False))
        return shown


class _ActionListSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Refers to the schema of the hot endpoints (`tangram_web/lib/schema.py`)."""

    target_class = ActionListView

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        """Return a placeholder, which the struct's own schema replaces."""
        return {"type": "object", "properties": {"id": {"type": "string"}}}

    def get_name(self, auto_schema: Any, direction: Any) -> str:
        """Return the struct's name."""
        return ActionResponse.__name__


class _Totals(serializers.Serializer[Any]):
    actions = serializers.IntegerField(help_text="Actions accepted.")
    finished = serializers.IntegerField(help_text="Actions finished.")
    external_seconds = serializers.FloatField(help_text="Sum of the ACT of finished actions.")


class TaskView(_Totals):
    """A task and its totals."""

    id = serializers.CharField(source="name")
    project = serializers.CharField()
    pool = serializers.CharField()
    metadata = serializers.DictField()
    opened_at = serializers.DateTimeField()


class TrajectoryView(_Totals):
    """A trajectory and its totals."""

    id = serializers.CharField(source="name")
    project = serializers.CharField()
    task = serializers.CharField()
    pool = serializers.CharField()
    node = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(choices=TrajectoryStatus.choices)
    environment = serializers.DictField(allow_null=True)
    metadata = serializers.DictField()
    opened_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    environment_removed_at = serializers.DateTimeField(allow_null=True)


class NodeView(serializers.Serializer[Any]):
    """A node."""

    name = serializers.CharField()
    pool = serializers.CharField()
    state = serializers.ChoiceField(choices=NodeAvailability.choices)
    incarnation = serializers.IntegerField()
    resources = serializers.DictField()
    isolation = serializers.CharField()
    oversubscribed = serializers.BooleanField()
    hostname = serializers.CharField()
    version = serializers.CharField()
    joined_at = serializers.DateTimeField()
    lost_at = serializers.DateTimeField(allow_null=True)
