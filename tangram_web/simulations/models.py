"""Simulation requests with their state and result.

The row is the job: `runner` claims it by a conditional update, stores a heartbeat in it while the
simulator runs, and writes the result (decision 0027).
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from tangram_web.lib.fields import JsonText
from tangram_web.pools.models import Project


class SimulationState(models.TextChoices):
    """State of a simulation."""

    QUEUED = "queued"  # -> RUNNING | CANCELLED
    RUNNING = "running"  # -> FINISHED | FAILED | CANCELLED | QUEUED (its runner stopped)
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (SimulationState.QUEUED, SimulationState.RUNNING)


def new_simulation_id() -> str:
    """Return a new id, random and usable in a URL."""
    return f"sim_{secrets.token_hex(8)}"


class Simulation(models.Model):
    """One simulated comparison of policies or configurations."""

    id = models.CharField(primary_key=True, max_length=32, default=new_simulation_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="simulations")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    title = models.CharField(max_length=120, blank=True, default="")
    #: `simulator.request.Request`.
    request = JsonText(default=dict)
    #: Description of the input, for display; its content is in `SimulationInput`.
    source = models.CharField(max_length=200, blank=True, default="")
    state = models.CharField(
        max_length=16, choices=SimulationState.choices, default=SimulationState.QUEUED
    )
    cancel_wished = models.BooleanField(default=False)
    #: ``{"policy", "seed", "done", "total", "runs_done", "runs"}`` of the run in progress.
    progress = JsonText(default=dict)
    #: `simulator.job.Outcome`; null until it is finished.
    outcome = JsonText(null=True)
    problem = models.TextField(blank=True, default="")
    #: How often a runner has claimed it.
    attempts = models.PositiveSmallIntegerField(default=0)
    alive_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["state"], name="simulation_state")]

    def __str__(self) -> str:
        return self.title or self.id

    @property
    def open(self) -> bool:
        """Whether it is queued or running."""
        return self.state in OPEN

    @property
    def share(self) -> float:
        """Progress from 0 to 1."""
        progress: dict[str, Any] = self.progress or {}
        runs, total = progress.get("runs", 0), progress.get("total", 0)
        within = progress.get("done", 0) / total if total else 0.0
        return min(1.0, (progress.get("runs_done", 0) + within) / runs) if runs else 0.0


class SimulationInput(models.Model):
    """The compressed trace of a simulation; a table of its own, so that lists do not read it."""

    simulation = models.OneToOneField(
        Simulation, primary_key=True, on_delete=models.CASCADE, related_name="input"
    )
    content = models.BinaryField()

    def __str__(self) -> str:
        return f"input of {self.simulation_id}"
