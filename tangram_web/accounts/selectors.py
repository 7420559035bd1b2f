"""Queries for members, tokens and sessions."""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import Q, QuerySet
from django.utils import timezone

from tangram_web.accounts.access import roles_of
from tangram_web.accounts.models import Membership, Role, SeenSession
from tangram_web.pools.models import Token


def members_seen_by(user: Any) -> QuerySet[Membership]:
    """Select the memberships of all projects in which ``user`` has a role."""
    members = Membership.objects.filter(project__in=roles_of(user)).select_related("user")
    return members.order_by("project", "user__username")


def tokens_shown_to(user: Any) -> QuerySet[Token]:
    """Select the tokens of ``user`` and of projects that ``user`` administers, newest first."""
    administered = Q(project__in=roles_of(user, Role.ADMIN))
    if user.is_superuser:
        administered |= Q(project=None)
    tokens: QuerySet[Token] = Token.objects.filter(administered | Q(user=user))
    return tokens.select_related("user").order_by("-created")


def sessions_of(user: Any) -> list[SeenSession]:
    """Return the open sessions of ``user``, latest first; rows of ended sessions are deleted."""
    seen = SeenSession.objects.filter(user=user)
    keys = seen.values_list("session_key", flat=True)
    live = Session.objects.filter(session_key__in=list(keys), expire_date__gt=timezone.now())
    alive = set(live.values_list("session_key", flat=True))
    seen.exclude(session_key__in=alive).delete()
    return list(seen.order_by("-seen_at"))
