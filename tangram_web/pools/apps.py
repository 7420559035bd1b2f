"""Django app of the configuration."""

from __future__ import annotations

from django.apps import AppConfig


class PoolsConfig(AppConfig):
    """What users configure."""

    name = "tangram_web.pools"
    label = "pools"
    verbose_name = "Configuration"
