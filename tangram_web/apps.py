"""The project as an app: management commands, and what apps get from the scheduler."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig

from domain.policies import use_known_policies


class TangramConfig(AppConfig):
    """Tangram."""

    name = "tangram_web"
    label = "tangram_web"

    def ready(self) -> None:
        """Let apps validate names of policies; the core is imported on first use."""
        use_known_policies(_policy_forms)


def _policy_forms() -> tuple[str, ...]:
    forms: tuple[str, ...] = import_module("scheduler.core.policies.registry").policy_forms()
    return forms
