"""Django app of comparisons."""

from __future__ import annotations

from django.apps import AppConfig


class CompareConfig(AppConfig):
    """Comparisons have no rows of their own."""

    name = "tangram_web.compare"
    label = "compare"
