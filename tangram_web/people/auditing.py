"""The one way in which pages of people, webhooks and simulations write the audit."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.lib.requests import request_id_of
from tangram_web.pools.models import AuditEntry
from tangram_web.pools.services import Actor


def actor_at(request: HttpRequest) -> Actor:
    """Return the person who is signed in at a page."""
    return Actor(name=request.user.get_username(), request_id=request_id_of(request))


def record(
    who: HttpRequest | Actor,
    verb: str,
    target: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    *,
    project: str = "",
) -> None:
    """Write who did what; call it in the transaction of the effect."""
    actor = who if isinstance(who, Actor) else actor_at(who)
    AuditEntry.objects.create(
        actor=actor.name,
        token_name=actor.token_name,
        request_id=actor.request_id,
        verb=verb,
        target=f"{project}:{target}" if project else target,
        before=before,
        after=after,
    )
