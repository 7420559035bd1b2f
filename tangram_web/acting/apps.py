"""The app acting."""

from __future__ import annotations

from django.apps import AppConfig


class ActingConfig(AppConfig):
    """Verbs at pages."""

    name = "tangram_web.acting"
    label = "acting"
    verbose_name = "Acting"
