"""The app configuration."""

from __future__ import annotations

from django.apps import AppConfig


class ConfigurationConfig(AppConfig):
    """Pages of the configuration."""

    name = "tangram_web.configuration"
    label = "configuration"
    verbose_name = "Configuration pages"
