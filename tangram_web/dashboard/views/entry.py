"""Entry: the link that ``tangram up`` prints signs its reader in."""

from __future__ import annotations

from typing import cast

from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from tangram_web.dashboard.entry_links import claim_entry
from tangram_web.dashboard.guards import refuse


@never_cache
def enter(request: HttpRequest) -> HttpResponse:
    """Sign in by a link, once."""
    user = claim_entry(request.GET.get("token", ""))
    if user is None:
        cure = (
            "A link works once and for ten minutes. Start Tangram again for a new one, or sign in."
        )
        return refuse(request, "This link is not valid any more", cure, 403)
    login(request, cast("User", user), backend="django.contrib.auth.backends.ModelBackend")
    return redirect("dashboard:overview")
