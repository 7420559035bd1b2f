"""Simulations in the admin site, read only."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.lib.admin import ReadOnlyAdmin
from tangram_web.simulations.models import Simulation


@admin.register(Simulation)
class SimulationAdmin(ReadOnlyAdmin):
    """Simulations."""

    list_display = ("id", "project", "owner", "title", "state", "created_at", "finished_at")
    list_filter = ("state", "project")
    exclude = ("outcome",)
    ordering = ("-created_at",)
