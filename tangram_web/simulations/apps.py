"""Simulations as an app."""

from __future__ import annotations

from django.apps import AppConfig


class SimulationsConfig(AppConfig):
    """What was simulated, and what came out."""

    name = "tangram_web.simulations"
    label = "simulations"
