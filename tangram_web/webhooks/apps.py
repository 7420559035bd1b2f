"""Django app of the webhooks."""

from __future__ import annotations

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    """Endpoints, deliveries and their attempts."""

    name = "tangram_web.webhooks"
    label = "webhooks"
