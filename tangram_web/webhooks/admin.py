"""Webhooks in the admin site, read only and without secrets."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.lib.admin import ReadOnlyAdmin
from tangram_web.webhooks.models import Delivery, Endpoint


@admin.register(Endpoint)
class EndpointAdmin(ReadOnlyAdmin):
    """Endpoints."""

    list_display = ("id", "project", "url", "enabled", "failing_since", "notice")
    exclude = ("secret", "former_secret")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """Deliveries."""

    list_display = ("message_id", "endpoint", "event", "subject", "state", "attempts", "last_said")
    list_filter = ("state", "event")
    ordering = ("-id",)
