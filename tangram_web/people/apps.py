"""People as an app: memberships, and the pages about accounts."""

from __future__ import annotations

from django.apps import AppConfig


class PeopleConfig(AppConfig):
    """Memberships in projects."""

    name = "tangram_web.people"
    label = "people"
