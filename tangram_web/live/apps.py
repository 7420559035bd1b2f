"""Django application of the live frames."""

from __future__ import annotations

from django.apps import AppConfig


class LiveConfig(AppConfig):
    """Live frames; has no tables."""

    name = "tangram_web.live"
    label = "live"
