"""Join tokens in the console: administrators create them for new machines, and revoke them.

The token itself is part of the one response that creates it. All rules are those of `tangram_web.pools.join_tokens`.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from tangram_web.accounts.access import role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.audit.services import actor_at
from tangram_web.dashboard.guards import refuse
from tangram_web.pools import join_tokens, node_access
from tangram_web.pools.models import NAME_LENGTH, JoinToken, Pool

SHOWN: Final = 200
#: Seconds after which a token expires, as the form offers them.
LIVES: Final = {600: "10 minutes", 3600: "1 hour", 86_400: "1 day", 604_800: "7 days"}
ONE, PREFIX, ANY = "node", "prefix", ""


class JoinTokenForm(forms.Form):
    """A join token to create."""

    names = forms.ChoiceField(
        label="Names",
        choices=((ANY, "any name"), (ONE, "this name"), (PREFIX, "names that begin with")),
        required=False,
    )
    name = forms.CharField(label="Name", max_length=NAME_LENGTH, required=False)
    pool = forms.ChoiceField(label="Pool", required=False)
    isolation = forms.ChoiceField(
        label="Isolation",
        choices=[("", "as the machine says"), *((each, each) for each in join_tokens.ISOLATIONS)],
        required=False,
    )
    uses = forms.IntegerField(label="Uses", initial=1, min_value=1, max_value=join_tokens.MOST_USES)
    seconds = forms.TypedChoiceField(
        label="Expires after", choices=list(LIVES.items()), coerce=int,
        initial=join_tokens.DEFAULT_SECONDS,
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pools = Pool.objects.order_by("name").values_list("name", flat=True)
        offered = [("", "as the machine says"), *((name, name) for name in pools)]
        self.fields["pool"].choices = offered  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """Check that a name is given where one is chosen, and only there."""
        given: dict[str, Any] = super().clean() or {}
        if bool(given.get("names")) != bool(given.get("name")):
            named = given.get("name")
            self.add_error(
                "names" if named else "name",
                "choose what the name is for" if named else "give the name, or choose any name",
            )
        return given

    def add_refusal(self, error: TangramError) -> None:
        """Show a refusal at the field that it points at."""
        field = (getattr(error, "pointer", "") or "").removeprefix("/")
        field = "name" if field in {"node", "prefix"} else field
        self.add_error(field if field in self.fields else None, str(error))


@never_cache
def node_tokens(request: HttpRequest) -> HttpResponse:
    """List join tokens, and create one; its value is part of this response only."""
    form, raw, status = JoinTokenForm(), "", 200
    if request.method == "POST" and not _is_admin(request):
        return _refused(request)
    if request.method == "POST":
        form = JoinTokenForm(request.POST)
        raw = _created(request, form) if form.is_valid() else ""
        status = 200 if raw else 422
    now, (hindrance, can_create) = timezone.now(), _hindrance()
    shown = JoinToken.objects.order_by("-created_at", "-pk")[:SHOWN]
    context = {
        "tokens": [(token, join_tokens.why_useless(token, now)) for token in shown],
        "form": form,
        "raw": raw,
        "made": form.cleaned_data if raw else {},
        "address": request.build_absolute_uri("/").rstrip("/"),
        "hindrance": hindrance,
        "can_create": can_create,
        "is_admin": _is_admin(request),
    }
    return render(request, "dashboard/node_tokens.html", context, status=status)


def revoke_node_token(request: HttpRequest, token_id: str) -> HttpResponse:
    """Revoke a join token; nodes that joined by it stay."""
    if not _is_admin(request):
        return _refused(request)
    try:
        join_tokens.join_token_revoke(actor=actor_at(request), public_id=token_id)
        messages.success(request, f"{token_id} is revoked. Nodes that joined by it stay.")
    except NotFound as error:
        messages.error(request, f"{error}.")
    return redirect("dashboard:node-tokens")


def _created(request: HttpRequest, form: JoinTokenForm) -> str:
    """Return the new token; empty when it is refused, with the reason in the form."""
    given = form.cleaned_data
    named = {given["names"]: given["name"]} if given["names"] else {}
    try:
        _, raw = join_tokens.join_token_create(
            actor=actor_at(request), pool=given["pool"], isolation=given["isolation"],
            seconds=given["seconds"], uses=given["uses"], **named,
        )  # fmt: skip
    except (InvalidRequest, Conflict) as error:
        form.add_refusal(error)
        return ""
    return raw


def _hindrance() -> tuple[str, bool]:
    """Return why no machine can join by a token now (empty: one can), and whether tokens can be created all the same."""
    try:
        node_access.require_users()
        join_tokens.redis_of_nodes()
    except TangramError as error:
        return str(error), False
    try:
        node_access.require_keeper()
    except TangramError as error:
        return str(error), True
    return "", True


def _is_admin(request: HttpRequest) -> bool:
    return role_everywhere(request.user) is Role.ADMIN


def _refused(request: HttpRequest) -> HttpResponse:
    cure = "Join tokens open every pool: administrators of the whole system create and revoke them."
    return refuse(request, "Not permitted", cure, 403)
