"""Django app of the audit."""

from __future__ import annotations

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """Who did what."""

    name = "tangram_web.audit"
    label = "audit"
    verbose_name = "Audit"
