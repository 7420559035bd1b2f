"""Memberships (an account's role in a project) and recorded sessions."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from tangram_web.pools.models import Project


class Role(models.TextChoices):
    """A role in a project; each includes the roles before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"


class Membership(models.Model):
    """The role of one account in one project."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "project"], name="one_role_in_a_project")
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project_id}"


class SeenSession(models.Model):
    """Address, browser and last use of a session, for the account's list of sessions."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="seen_sessions"
    )
    session_key = models.CharField(max_length=40, unique=True)
    address = models.CharField(max_length=64, blank=True, default="")
    browser = models.CharField(max_length=200, blank=True, default="")
    since = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user} from {self.address}"
