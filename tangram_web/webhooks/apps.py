"""Webhooks as an app."""

from __future__ import annotations

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    """Endpoints, and what was told to them."""

    name = "tangram_web.webhooks"
    label = "webhooks"
