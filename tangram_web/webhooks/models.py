"""Endpoints, what is to be told to them, and each attempt at that.

`Delivery` is the outbox: its rows are written in the transaction that moves the projection of the
journal, so what happened is told at least once, or stays visible as dead.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import ClassVar

from django.db import models

from tangram_web.lib.fields import JsonText
from tangram_web.lib.sealing import unseal
from tangram_web.pools.models import Project


class WebhookEvent(models.TextChoices):
    """What there is to be told of."""

    TRAJECTORY_FINISHED = "trajectory.finished", "a trajectory finished"
    BREAKER_OPENED = "breaker.opened", "the circuit of an API opened"
    QUOTA_EXHAUSTED = "quota.exhausted", "a quota has nothing left"
    NODE_LOST = "node.lost", "a node was lost"


#: What secrets are sealed for.
PURPOSE = "webhook"
#: The type of what the page sends on demand; nobody subscribes to it.
PING = "endpoint.ping"


class DeliveryState(models.TextChoices):
    """How a delivery stands."""

    PENDING = "pending"  # -> DELIVERED | DEAD
    DELIVERED = "delivered"
    DEAD = "dead"  # -> PENDING, by hand


def new_endpoint_id() -> str:
    """Return a name for an endpoint."""
    return f"whk_{secrets.token_hex(8)}"


class Endpoint(models.Model):
    """An address that is told of events of one project, and of the whole system."""

    id = models.CharField(primary_key=True, max_length=32, default=new_endpoint_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="endpoints")
    url = models.CharField(max_length=500)
    #: Values of `WebhookEvent`.
    events = JsonText(default=list)
    #: Needed to sign, so they are sealed and not hashed (`tangram_web.lib.sealing`); shown once.
    secret = models.TextField()
    former_secret = models.TextField(blank=True, default="")
    #: Until then the former secret signs as well.
    former_until = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
    #: Why it was disabled, when nobody did that by hand.
    notice = models.CharField(max_length=300, blank=True, default="")
    #: Since when every attempt has failed.
    failing_since = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.url

    def secrets_at(self, now: datetime) -> list[str]:
        """Return the secrets that sign at ``now``, the newest first. Raises Unsealable."""
        known = [unseal(self.secret, PURPOSE)]
        if self.former_secret and self.former_until is not None and now < self.former_until:
            known.append(unseal(self.former_secret, PURPOSE))
        return known


class Delivery(models.Model):
    """One message to one endpoint."""

    id = models.BigAutoField(primary_key=True)
    #: The ``webhook-id``: the same in every attempt, for receivers to know repeats by.
    message_id = models.CharField(max_length=64, unique=True)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=40)
    #: What it is about, as in ``trajectory/default/t1``.
    subject = models.CharField(max_length=400)
    #: The exact text that is signed and sent.
    body = models.TextField()
    state = models.CharField(
        max_length=16, choices=DeliveryState.choices, default=DeliveryState.PENDING
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    #: When it is due; whoever sends it moves this ahead first.
    next_at = models.DateTimeField()
    last_said = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "deliveries"
        indexes: ClassVar = [
            models.Index(fields=["state", "next_at"], name="delivery_due"),
            models.Index(fields=["subject"], name="delivery_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.message_id}: {self.event}"


class DeliveryAttempt(models.Model):
    """One request and what came back."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="tries")
    #: None: no answer came.
    status = models.PositiveSmallIntegerField(null=True)
    said = models.CharField(max_length=300, blank=True, default="")
    #: The beginning of the answer's body, as text.
    body = models.TextField(blank=True, default="")
    seconds = models.FloatField(default=0.0)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "webhooks_attempt"

    def __str__(self) -> str:
        return f"{self.status}: {self.said}"


class LastTurn(models.Model):
    """When something that is told when it turns bad last did."""

    name = models.CharField(primary_key=True, max_length=200)
    turned_at = models.DateTimeField()

    class Meta:
        db_table = "webhooks_standing"

    def __str__(self) -> str:
        return f"{self.name} since {self.turned_at}"
