"""Simulations in the admin site, to look at."""

from __future__ import annotations

from django.contrib import admin

from tangram_web.lib.admin import ReadOnlyAdmin
from tangram_web.simulations.models import Simulation


@admin.register(Simulation)
class SimulationAdmin(ReadOnlyAdmin):
    """What was simulated."""

    list_display = ("id", "project", "owner", "title", "state", "created_at", "finished_at")
    list_filter = ("state", "project")
    exclude = ("outcome",)
    ordering = ("-created_at",)
