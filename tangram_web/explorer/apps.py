"""The app explorer."""

from __future__ import annotations

from django.apps import AppConfig


class ExplorerConfig(AppConfig):
    """Lists with filters, and saved views of them."""

    name = "tangram_web.explorer"
    label = "explorer"
    verbose_name = "Explorer"
    default_auto_field = "django.db.models.BigAutoField"
