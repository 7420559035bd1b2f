"""Django application of the rows."""

from __future__ import annotations

from django.apps import AppConfig


class RecordsConfig(AppConfig):
    """Rows projected from the journal."""

    name = "tangram_web.records"
    label = "records"
    verbose_name = "History"
