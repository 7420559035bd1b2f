"""Django app of the pages of selectors."""

from __future__ import annotations

from django.apps import AppConfig


class ParallelismPagesConfig(AppConfig):
    """Selectors of parallelism."""

    name = "tangram_web.parallelism"
    label = "parallelism"
