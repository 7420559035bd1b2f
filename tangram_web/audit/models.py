"""Audit entries; only `services.record` and the projection of the journal write them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone

from tangram_web.lib.append_only import AppendOnly
from tangram_web.lib.fields import JsonText


class Via(models.TextChoices):
    """The interface that a verb came through."""

    WEB = "web"
    API = "api"
    CLI = "cli"
    SYSTEM = "system"


class AuditEntry(AppendOnly):
    """One verb: its actor, its target, and the target before and after."""

    actor = models.CharField(max_length=150)
    token_name = models.CharField(max_length=128, blank=True, default="")
    via = models.CharField(max_length=8, choices=Via.choices, default=Via.API)
    verb = models.CharField(max_length=64)
    #: ``kind/name``.
    target = models.CharField(max_length=300)
    #: Owner of the target; empty for what all projects share.
    project = models.CharField(max_length=128, blank=True, default="")
    before = JsonText(null=True)
    after = JsonText(null=True)
    request_id = models.CharField(max_length=128, blank=True, default="")
    at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [models.Index(fields=["target"], name="audit_target")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verb} {self.target}"
