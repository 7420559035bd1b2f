"""Django app of reports."""

from __future__ import annotations

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    """Reports have no rows of their own."""

    name = "tangram_web.reports"
    label = "reports"
