"""Saved views: queries with a name, by person and project; and the columns that a person chose."""

from __future__ import annotations

import secrets
from typing import ClassVar

from django.conf import settings
from django.db import models

from tangram_web.lib.fields import JsonText
from tangram_web.pools.models import Project


def new_view_id() -> str:
    """Return a new id, random and usable in a URL."""
    return f"view_{secrets.token_hex(8)}"


class SavedView(models.Model):
    """A query with its order and columns, under a name."""

    id = models.CharField(primary_key=True, max_length=32, default=new_view_id)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="saved_views"
    )
    #: Members of this project see it as well; null: its owner alone.
    project = models.ForeignKey(
        Project, null=True, on_delete=models.CASCADE, related_name="saved_views"
    )
    tab = models.CharField(max_length=16)
    name = models.CharField(max_length=80)
    query = models.TextField(blank=True, default="")
    #: Name of the order, with a minus before it where it falls; empty: the usual one.
    order = models.CharField(max_length=32, blank=True, default="")
    columns = JsonText(default=list)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "saved view"
        indexes: ClassVar = [models.Index(fields=["tab", "name"], name="view_by_name")]

    def __str__(self) -> str:
        return self.name


class TabChoice(models.Model):
    """What a person chose for a tab: columns, and the view that it opens with."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tab_choices"
    )
    tab = models.CharField(max_length=16)
    columns = JsonText(default=list)
    view = models.ForeignKey(SavedView, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        verbose_name = "choice of a tab"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "tab"], name="choice_of_tab")
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.tab}"
