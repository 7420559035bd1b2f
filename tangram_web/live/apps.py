"""Django's handle on the live frames."""

from __future__ import annotations

from django.apps import AppConfig


class LiveConfig(AppConfig):
    """Live frames; no rows of its own."""

    name = "tangram_web.live"
    label = "live"
