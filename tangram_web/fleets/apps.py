"""Django app of the pages of fleets."""

from __future__ import annotations

from django.apps import AppConfig


class FleetPagesConfig(AppConfig):
    """Fleets of language models."""

    name = "tangram_web.fleets"
    label = "fleets"
