"""Rows in the admin site, read only."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.lib.admin import ReadOnlyAdmin
from tangram_web.records.models import (
    ActionRecord,
    NodeRecord,
    RolloutRecord,
    TaskRecord,
    TrajectoryRecord,
)


@admin.register(ActionRecord)
class ActionRecordAdmin(ReadOnlyAdmin):
    """Actions."""

    list_display = ("id", "project", "task", "kind", "state", "outcome", "node", "act_seconds")
    list_filter = ("state", "outcome", "kind")
    search_fields = ("=id", "=task", "=trajectory")
    search_help_text = "Exact id, task or trajectory"
    ordering = ("-pk",)


@admin.register(TrajectoryRecord)
class TrajectoryRecordAdmin(ReadOnlyAdmin):
    """Trajectories."""

    list_display = ("key", "task", "state", "node", "actions", "finished", "opened_at")
    list_filter = ("state",)
    search_fields = ("name", "=task")
    ordering = ("-opened_at",)


@admin.register(TaskRecord)
class TaskRecordAdmin(ReadOnlyAdmin):
    """Tasks."""

    list_display = ("key", "pool", "actions", "finished", "external_seconds", "opened_at")
    search_fields = ("name",)
    ordering = ("-opened_at",)


@admin.register(RolloutRecord)
class RolloutRecordAdmin(ReadOnlyAdmin):
    """Rollouts."""

    list_display = ("id", "project", "task", "handler", "state", "outcome", "reward", "worker")
    list_filter = ("state", "outcome", "handler")
    search_fields = ("=id", "=task", "=instance", "=group")
    search_help_text = "Exact id, task, instance or group"
    ordering = ("-pk",)


@admin.register(NodeRecord)
class NodeRecordAdmin(ReadOnlyAdmin):
    """Nodes."""

    list_display = ("name", "pool", "state", "isolation", "oversubscribed", "joined_at", "lost_at")
    list_filter = ("state", "pool")
    search_fields = ("name", "hostname")
