"""Django app of the accounts: memberships and sessions."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Memberships in projects."""

    name = "tangram_web.accounts"
    label = "people"

    def ready(self) -> None:
        """Note sessions from the first one on."""
        import_module("tangram_web.accounts.middleware")
