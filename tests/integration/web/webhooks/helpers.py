"""Builders and stand-ins for tests of webhooks."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from tangram_web.accounts.models import Membership, Role
from tangram_web.pools.models import Project
from tangram_web.webhooks import outbox
from tangram_web.webhooks.models import Delivery, Endpoint

ALL = ["trajectory.finished", "breaker.opened", "quota.exhausted", "node.lost"]


def signed_in(role: Role, project: str = "default") -> Client:
    Project.objects.get_or_create(name=project, defaults={"default_pool_id": "default"})
    user, _ = get_user_model().objects.get_or_create(username=f"{role}-{project}")
    Membership.objects.get_or_create(user=user, project_id=project, role=role)
    client = Client()
    client.force_login(user)
    return client


def a_delivery(endpoint: Endpoint, **given: Any) -> Delivery:
    fields = {"event": "node.lost", "subject": "node/n1", "body": '{"type":"node.lost"}',
              "message_id": outbox.new_message_id(), "next_at": timezone.now()}  # fmt: skip
    return Delivery.objects.create(endpoint=endpoint, **{**fields, **given})
