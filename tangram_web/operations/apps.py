"""The app acting."""

from __future__ import annotations

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """Verbs at pages."""

    name = "tangram_web.operations"
    label = "operations"
    verbose_name = "Operations"
