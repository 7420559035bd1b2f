"""Django app of the simulations."""

from __future__ import annotations

from django.apps import AppConfig


class SimulationsConfig(AppConfig):
    """Simulation requests and their results."""

    name = "tangram_web.simulations"
    label = "simulations"
