"""App configuration of the pages."""

from __future__ import annotations

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """Pages; no rows of its own."""

    name = "tangram_web.dashboard"
    label = "dashboard"
