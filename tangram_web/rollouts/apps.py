"""Django app of the pages of rollouts."""

from __future__ import annotations

from django.apps import AppConfig


class RolloutPagesConfig(AppConfig):
    """Rollouts, groups and backends."""

    name = "tangram_web.rollouts"
    label = "rollouts"
