"""The configuration in the admin site, read only.

Changes are made by the services, which write the audit and publish to the scheduler.
"""

from __future__ import annotations

from django.contrib import admin

from tangram_web.lib.admin import ReadOnlyAdmin
from tangram_web.pools.models import (
    ConfigRevision,
    FleetRow,
    GpuServiceRow,
    JoinToken,
    NodeDrain,
    NodeGroupRow,
    Pool,
    Project,
    Resource,
    SelectorRow,
    Token,
)


@admin.register(Pool)
class PoolAdmin(ReadOnlyAdmin):
    """Pools."""

    list_display = (
        "name",
        "policy",
        "paused",
        "light_by_default",
        "sandbox",
        "host_network",
        "created_at",
    )


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    """Projects."""

    list_display = ("name", "default_pool", "created_at")


@admin.register(Resource)
class ResourceAdmin(ReadOnlyAdmin):
    """Cluster-wide resources."""

    list_display = ("name", "limit_units", "created_at")


@admin.register(GpuServiceRow)
class GpuServiceAdmin(ReadOnlyAdmin):
    """GPU services."""

    list_display = ("name", "created_at")


@admin.register(SelectorRow)
class SelectorAdmin(ReadOnlyAdmin):
    """Selectors of parallelism."""

    list_display = ("name", "created_at")


@admin.register(FleetRow)
class FleetAdmin(ReadOnlyAdmin):
    """Fleets."""

    list_display = ("name", "created_at")


@admin.register(NodeGroupRow)
class NodeGroupAdmin(ReadOnlyAdmin):
    """Node groups."""

    list_display = ("name", "created_at")


@admin.register(NodeDrain)
class NodeDrainAdmin(ReadOnlyAdmin):
    """Drained nodes."""

    list_display = ("node", "reason", "since")


@admin.register(Token)
class TokenAdmin(ReadOnlyAdmin):
    """Tokens, without their hashes."""

    list_display = ("name", "public_id", "project", "expiry", "last_used_at", "revoked_at")
    exclude = ("digest", "token_key")
    search_fields = ("name", "public_id")


@admin.register(JoinToken)
class JoinTokenAdmin(ReadOnlyAdmin):
    """Join tokens, without their hashes."""

    list_display = ("public_id", "node", "pool", "used", "uses", "expires_at", "revoked_at")
    exclude = ("digest",)


@admin.register(ConfigRevision)
class ConfigRevisionAdmin(ReadOnlyAdmin):
    """Revisions of the configuration."""

    list_display = ("number", "author", "created_at")
    ordering = ("-number",)
