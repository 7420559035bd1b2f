"""Audit entries are written here, in the transaction of the effect that they describe.

Verbs from pages and REST are written by `record`. The gateway has no database: its journalled events
carry the actor, and the projection writes their entries by `record_asked`, in the transaction that
moves its position, so each entry is written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.http import HttpRequest

from domain.event_base import RequestOrigin
from tangram_web.audit.models import AuditEntry, Via
from tangram_web.lib.requests import comes_from_cli, request_id_of
from tangram_web.lib.sealing import masked

JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Actor:
    """The author of a change."""

    name: str
    token_name: str = ""
    request_id: str = ""
    via: str = Via.API


SYSTEM = Actor(name="tangram", via=Via.SYSTEM)


def actor_at(request: HttpRequest) -> Actor:
    """Return the account that is signed in."""
    name = request.user.get_username()
    return Actor(name=name, request_id=request_id_of(request), via=Via.WEB)


def actor_with_token(request: HttpRequest, name: str) -> Actor:
    """Return the token called ``name`` as the author of a REST request."""
    via = Via.CLI if comes_from_cli(request) else Via.API
    return Actor(name=name, token_name=name, request_id=request_id_of(request), via=via)


def record(
    who: Actor | HttpRequest,
    verb: str,
    target: str,
    before: JsonObject | None = None,
    after: JsonObject | None = None,
    *,
    project: str = "",
) -> AuditEntry:
    """Write an entry: ``who`` did ``verb`` to ``target`` (``kind/name``), from ``before`` to ``after``.

    Sealed secrets become markers. A request means its signed-in account. Call this inside the transaction of the effect, so that
    both are committed or neither; an effect outside the database follows in the same block.
    """
    actor = who if isinstance(who, Actor) else actor_at(who)
    with transaction.atomic():
        return AuditEntry.objects.create(
            actor=actor.name,
            token_name=actor.token_name,
            via=actor.via,
            request_id=actor.request_id,
            verb=verb,
            target=target,
            project=project,
            before=masked(before),
            after=masked(after),
        )


@dataclass(frozen=True, kw_only=True)
class AskedVerb:
    """A verb that came through the gateway, as journalled."""

    asked: RequestOrigin
    verb: str
    target: str
    project: str
    after: JsonObject
    #: Seconds since the epoch.
    at: float


def record_asked(verbs: Iterable[AskedVerb]) -> None:
    """Write the entries of verbs that came through the gateway."""
    AuditEntry.objects.bulk_create(
        AuditEntry(
            actor=each.asked.by,
            token_name=each.asked.by,
            via=each.asked.via,
            request_id=each.asked.request_id,
            verb=each.verb,
            target=each.target,
            project=each.project,
            after=each.after,
            at=datetime.fromtimestamp(each.at, UTC),
        )
        for each in verbs
    )
