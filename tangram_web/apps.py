"""Django app of the project itself, for its management commands."""

from __future__ import annotations

from django.apps import AppConfig


class TangramConfig(AppConfig):
    """Tangram."""

    name = "tangram_web"
    label = "tangram_web"
