"""The audit in the admin site, read only."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.audit.models import AuditEntry
from tangram_web.lib.admin import ReadOnlyAdmin


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Audited verbs."""

    list_display = ("at", "actor", "via", "verb", "target", "request_id")
    list_filter = ("verb", "via")
    search_fields = ("actor", "target", "=request_id")
    ordering = ("-at",)
