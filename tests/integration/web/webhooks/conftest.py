"""Endpoints of webhooks, and their admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tangram_web.accounts.models import Role
from tangram_web.lib.sealing import seal
from tangram_web.webhooks.models import PURPOSE, Endpoint
from tangram_web.webhooks.signing import new_secret
from tests.integration.web.webhooks.helpers import ALL, signed_in


@pytest.fixture
def endpoint(defaults: None, settings: Any) -> Callable[..., Endpoint]:
    """Make endpoints; this machine may be called."""
    settings.TANGRAM_WEBHOOKS_LOOPBACK = True
    settings.TANGRAM_WEBHOOK_SECONDS = 120.0

    def make(url: str = "https://hooks.example.com/", **given: Any) -> Endpoint:
        fields = {
            "project_id": "default",
            "events": ALL,
            "secret": seal(new_secret(), PURPOSE),
            **given,
        }
        return Endpoint.objects.create(url=url, **fields)

    return make


@pytest.fixture
def admin(defaults: None) -> Client:
    return signed_in(Role.ADMIN)
