"""Webhook endpoints, deliveries and attempts.

`Delivery` is the outbox: its rows are written in the transaction that moves the position of the
journal's projection, so each event is delivered at least once, or stays visible as dead.
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
    """Events that endpoints can subscribe to."""

    TRAJECTORY_FINISHED = "trajectory.finished", "a trajectory finished"
    BREAKER_OPENED = "breaker.opened", "the circuit of an API opened"
    QUOTA_EXHAUSTED = "quota.exhausted", "a quota has nothing left"
    NODE_LOST = "node.lost", "a node was lost"
    PROBLEM_RAISED = "problem.raised", "a problem was raised"
    PROBLEM_CLEARED = "problem.cleared", "a problem was cleared"
    VIEW_FOUND = "view.found", "a saved view found rows"
    VIEW_EMPTY = "view.empty", "a saved view finds nothing any more"


VIEW_EVENTS = frozenset({WebhookEvent.VIEW_FOUND, WebhookEvent.VIEW_EMPTY})
#: Purpose of the encryption of secrets (`tangram_web.lib.sealing`).
PURPOSE = "webhook"
#: Event of the test message; endpoints get it without a subscription.
PING = "endpoint.ping"


class DeliveryState(models.TextChoices):
    """State of a delivery."""

    PENDING = "pending"  # -> DELIVERED | DEAD
    DELIVERED = "delivered"
    DEAD = "dead"  # -> PENDING, when a user sends it again


def new_endpoint_id() -> str:
    """Return a new id of an endpoint."""
    return f"whk_{secrets.token_hex(8)}"


class Endpoint(models.Model):
    """A URL that receives events of one project and of the whole system."""

    id = models.CharField(primary_key=True, max_length=32, default=new_endpoint_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="endpoints")
    url = models.CharField(max_length=500)
    #: Values of `WebhookEvent`.
    events = JsonText(default=list)
    #: Kinds of problems whose events it gets (`tangram_web.problems.kinds`); empty: all.
    problems = JsonText(default=list, db_default=[])
    #: Ids of the saved views of its project that it watches; empty: none.
    views = JsonText(default=list, db_default=[])
    #: Signing key, encrypted (`tangram_web.lib.sealing`); shown once.
    secret = models.TextField()
    former_secret = models.TextField(blank=True, default="")
    #: Until then, messages are signed with the former secret as well.
    former_until = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
    #: Reason of an automatic disabling.
    notice = models.CharField(max_length=300, blank=True, default="")
    #: Start of the present series of failures.
    failing_since = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.url

    def wants(self, event: str, about: str = "") -> bool:
        """Return whether it gets an event; ``about``: the kind of problem, or the id of the saved view, that it is about."""
        if event not in self.events:
            return False
        if event in VIEW_EVENTS:
            return about in self.views
        return not about or not self.problems or about in self.problems

    def secrets_at(self, now: datetime) -> list[str]:
        """Return the signing secrets at ``now``, the newest first. Raises Unsealable."""
        known = [unseal(self.secret, PURPOSE)]
        if self.former_secret and self.former_until is not None and now < self.former_until:
            known.append(unseal(self.former_secret, PURPOSE))
        return known


class Delivery(models.Model):
    """One message to one endpoint."""

    id = models.BigAutoField(primary_key=True)
    #: The ``webhook-id``: the same in every attempt, so that receivers recognise repeats.
    message_id = models.CharField(max_length=64, unique=True)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=40)
    #: Object of the event, as in ``trajectory/default/t1``.
    subject = models.CharField(max_length=400)
    #: The exact text that is signed and sent.
    body = models.TextField()
    state = models.CharField(
        max_length=16, choices=DeliveryState.choices, default=DeliveryState.PENDING
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    #: Time of the next attempt; claiming the row moves it ahead.
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
    """One HTTP request and its response."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="tries")
    #: None: no response.
    status = models.PositiveSmallIntegerField(null=True)
    said = models.CharField(max_length=300, blank=True, default="")
    #: The beginning of the response body, as text.
    body = models.TextField(blank=True, default="")
    seconds = models.FloatField(default=0.0)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "webhooks_attempt"

    def __str__(self) -> str:
        return f"{self.status}: {self.said}"


class WatchedView(models.Model):
    """A saved view that an endpoint watches, while it finds rows."""

    #: Of `tangram_web.explorer.models.SavedView`.
    view = models.CharField(primary_key=True, max_length=32)
    found_since = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.view} finds rows since {self.found_since}"


class LastTurn(models.Model):
    """The last time that a quota ran out, by the subject of its event."""

    name = models.CharField(primary_key=True, max_length=200)
    turned_at = models.DateTimeField()

    class Meta:
        db_table = "webhooks_standing"

    def __str__(self) -> str:
        return f"{self.name} since {self.turned_at}"
