"""Problems."""

from __future__ import annotations

from django.apps import AppConfig


class ProblemsConfig(AppConfig):
    """Problems, their page parts and their notifications."""

    name = "tangram_web.problems"
    label = "problems"
