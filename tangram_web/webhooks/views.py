"""Pages of webhooks: admins of a project configure them; its operators view, test and repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache

from domain.errors import Conflict, InvalidRequest
from tangram_web.accounts.access import may, require, roles_of
from tangram_web.accounts.models import Role
from tangram_web.explorer.models import SavedView
from tangram_web.lib.sealing import marker
from tangram_web.problems.kinds import KINDS
from tangram_web.webhooks import services
from tangram_web.webhooks.models import PURPOSE, DeliveryState, Endpoint, WebhookEvent


class EndpointForm(forms.Form):
    """Address and events of an endpoint."""

    url = forms.CharField(max_length=500)
    events = forms.MultipleChoiceField(choices=WebhookEvent.choices)
    #: None chosen: all.
    problems = forms.MultipleChoiceField(
        choices=[(kind.key, kind.name) for kind in KINDS], required=False
    )
    #: Saved views that it watches.
    views = forms.MultipleChoiceField(required=False)
    enabled = forms.BooleanField(required=False)

    def __init__(
        self, projects: Iterable[str], *args: Any, is_new: bool = True, **kwargs: Any
    ) -> None:
        """``projects``: those whose saved views are offered; a new endpoint is of one of them."""
        super().__init__(*args, **kwargs)
        names = list(projects)
        views = SavedView.objects.filter(project__in=names).order_by("project", "name")
        self.fields["views"].choices = [  # type: ignore[attr-defined]
            (view.pk, f"{view.project_id}: {view.name}") for view in views
        ]
        if is_new:
            self.fields["project"] = forms.ChoiceField(choices=[(name, name) for name in names])

    def add_pointed_error(self, error: InvalidRequest) -> None:
        """Show ``error`` at the field that it points at."""
        field = (error.pointer or "").removeprefix("/")
        self.add_error(field if field in self.fields else None, str(error))


SHOWN: Final = 100


@never_cache
def endpoints(request: HttpRequest) -> HttpResponse:
    """List the endpoints of the projects of the account, and add one."""
    projects = roles_of(request.user, Role.ADMIN)
    if request.method != "POST":
        return _list(request, EndpointForm(projects, initial=_chosen(request)))
    form = EndpointForm(projects, request.POST)
    if form.is_valid():
        given = form.cleaned_data
        try:
            made, secret = services.endpoint_create(
                http=request,
                project=given["project"],
                url=given["url"],
                events=given["events"],
                problems=given["problems"],
                views=given["views"],
            )
            return _one(request, made, secret=secret)
        except InvalidRequest as error:
            form.add_pointed_error(error)
        except Conflict as error:
            form.add_error(None, str(error))
    return _list(request, form, 422)


@never_cache
def endpoint(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Show one endpoint with its deliveries, and change it."""
    if request.method != "POST":
        return _one(request, _found(request, endpoint_id, Role.OPERATOR))
    found = _found(request, endpoint_id, Role.ADMIN)
    form = EndpointForm([found.project_id], request.POST, is_new=False)
    if form.is_valid():
        try:
            services.endpoint_update(http=request, endpoint=found, **form.cleaned_data)
            messages.success(request, "Saved.")
            return redirect("webhooks:one", endpoint_id)
        except InvalidRequest as error:
            form.add_pointed_error(error)
    return _one(request, found, form=form, status=422)


@never_cache
def rotate(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Replace the secret and show the new one once."""
    found = _found(request, endpoint_id, Role.ADMIN)
    return _one(request, found, secret=services.endpoint_rotate(http=request, endpoint=found))


def ping(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Send a test message."""
    found = _found(request, endpoint_id, Role.OPERATOR)
    try:
        services.endpoint_ping(http=request, endpoint=found)
        messages.success(request, "The test message is queued.")
    except Conflict as error:
        messages.error(request, f"{error}.")
    return redirect("webhooks:one", endpoint_id)


def delete(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Delete an endpoint after its address has been typed as a confirmation."""
    found = _found(request, endpoint_id, Role.ADMIN)
    if request.POST.get("confirm", "").strip() != found.url:
        messages.error(request, "Nothing was deleted: the typed address differs.")
        return redirect("webhooks:one", endpoint_id)
    services.endpoint_delete(http=request, endpoint=found)
    return redirect("webhooks:list")


def replay(request: HttpRequest, endpoint_id: str, delivery_id: int) -> HttpResponse:
    """Send a delivery again."""
    found = _found(request, endpoint_id, Role.OPERATOR)
    delivery = found.deliveries.select_related("endpoint").filter(pk=delivery_id).first()
    if delivery is None:
        raise Http404("there is no such delivery")
    try:
        services.delivery_replay(http=request, delivery=delivery)
        messages.success(request, f"{delivery.message_id} is queued again.")
    except Conflict as error:
        messages.error(request, f"{error}.")
    return redirect("webhooks:one", endpoint_id)


def _chosen(request: HttpRequest) -> dict[str, list[str]]:
    """Return the events, kinds of problems and saved views that the address chooses."""
    events = [each for each in request.GET.getlist("events") if each in WebhookEvent.values]
    chosen = {name: request.GET.getlist(name) for name in ("problems", "views")}
    return {"events": events, **chosen}


def _found(request: HttpRequest, endpoint_id: str, least: Role) -> Endpoint:
    found = Endpoint.objects.filter(pk=endpoint_id).first()
    if found is None:
        raise Http404("there is no such endpoint, or you may not see it")
    require(request.user, found.project_id, least)
    return found


def _list(request: HttpRequest, form: EndpointForm, status: int = 200) -> HttpResponse:
    seen = roles_of(request.user, Role.OPERATOR)
    context = {
        "form": form,
        "may_create": bool(form.fields["project"].choices),  # type: ignore[attr-defined]
        "endpoints": Endpoint.objects.filter(project__in=seen).order_by("project", "url"),
    }
    return render(request, "webhooks/list.html", context, status=status)


def _one(
    request: HttpRequest,
    found: Endpoint,
    *,
    secret: str = "",
    form: EndpointForm | None = None,
    status: int = 200,
) -> HttpResponse:
    initial: dict[str, Any] = {
        "url": found.url,
        "events": found.events,
        "problems": found.problems,
        "views": found.views,
        "enabled": found.enabled,
    }
    state = request.GET.get("state", "")
    deliveries = found.deliveries.order_by("-id").prefetch_related("tries")
    if state in DeliveryState.values:
        deliveries = deliveries.filter(state=state)
    context = {
        "endpoint": found,
        "secret": secret,
        "kept_secret": marker(found.secret, PURPOSE),
        "form": form or EndpointForm([found.project_id], initial=initial, is_new=False),
        "may_change": may(request.user, found.project_id, Role.ADMIN),
        "deliveries": deliveries[:SHOWN],
        "states": DeliveryState.values,
        "state": state,
    }
    return render(request, "webhooks/one.html", context, status=status)
