"""Simulations and what came out of them.

A row is the job: `runner` claims it by a conditional update, keeps a sign of life in it while its
process runs, and writes the end. Nothing about it lies anywhere else (decision 0027).
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from tangram_web.lib.fields import JsonText
from tangram_web.pools.models import Project


class SimulationState(models.TextChoices):
    """How a simulation stands."""

    QUEUED = "queued"  # -> RUNNING | CANCELLED
    RUNNING = "running"  # -> FINISHED | FAILED | CANCELLED | QUEUED (its runner died)
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (SimulationState.QUEUED, SimulationState.RUNNING)


def new_simulation_id() -> str:
    """Return a name that nobody guesses and that can stand in a link."""
    return f"sim_{secrets.token_hex(8)}"


class Simulation(models.Model):
    """One comparison of policies."""

    id = models.CharField(primary_key=True, max_length=32, default=new_simulation_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="simulations")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    title = models.CharField(max_length=120, blank=True, default="")
    #: `simulator.request.Request`.
    request = JsonText(default=dict)
    #: What the input is, for people; its content is in `SimulationInput`.
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
    #: How often it was begun; a runner that dies gives it back.
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
        """It waits or runs."""
        return self.state in OPEN

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        told: dict[str, Any] = self.progress or {}
        runs, total = told.get("runs", 0), told.get("total", 0)
        within = told.get("done", 0) / total if total else 0.0
        return min(1.0, (told.get("runs_done", 0) + within) / runs) if runs else 0.0


class SimulationInput(models.Model):
    """The trace of a simulation, deflated; apart, so that lists do not read it."""

    simulation = models.OneToOneField(
        Simulation, primary_key=True, on_delete=models.CASCADE, related_name="input"
    )
    content = models.BinaryField()

    def __str__(self) -> str:
        return f"input of {self.simulation_id}"
