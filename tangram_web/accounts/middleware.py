"""Records address, browser and last use of each session."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import time
from typing import Any, Final

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from tangram_web.accounts.models import SeenSession

#: Least time between two writes for one session: viewing pages causes few writes.
NOTED_EVERY: Final = timedelta(minutes=5)
_MARK: Final = "noted_at"


class SessionSeenMiddleware:
    """Updates the last use of a session every few minutes."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        session = getattr(request, "session", None)
        # A request with a bearer token has no session; reading it here would create one.
        if session is not None and session.accessed and session.session_key:
            due = time() - NOTED_EVERY.total_seconds()
            if session.get(_MARK, 0.0) < due and SESSION_KEY in session:
                _note(request, session[SESSION_KEY])
        return response


@receiver(user_logged_in)
def _signed_in(request: HttpRequest, user: Any, **_: Any) -> None:
    """Record a new session; a session without a key is recorded by its first request."""
    request.session[_MARK] = 0.0
    if request.session.session_key:
        _note(request, user.pk)


def _note(request: HttpRequest, user_id: Any) -> None:
    request.session[_MARK] = time()
    SeenSession.objects.update_or_create(
        session_key=request.session.session_key,
        defaults={
            "user_id": user_id,
            "address": request.META.get("REMOTE_ADDR", "")[:64],
            "browser": request.META.get("HTTP_USER_AGENT", "")[:200],
            "seen_at": timezone.now(),
        },
    )
