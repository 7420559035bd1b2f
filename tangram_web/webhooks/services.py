"""Changes of endpoints, test messages and repeats; each is one transaction with an audit entry."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from domain.errors import Conflict, InvalidRequest
from domain.receiver_urls import check_url
from tangram_web.audit.services import record
from tangram_web.explorer.models import SavedView
from tangram_web.lib.sealing import Unsealable, reseal, seal
from tangram_web.problems.kinds import KIND_OF
from tangram_web.webhooks.delivery import disable
from tangram_web.webhooks.models import (
    PING,
    PURPOSE,
    VIEW_EVENTS,
    Delivery,
    DeliveryState,
    Endpoint,
    WebhookEvent,
)
from tangram_web.webhooks.outbox import body_of, new_message_id
from tangram_web.webhooks.signing import new_secret

log = logging.getLogger(__name__)

MOST_ENDPOINTS: Final = 20
#: Saved views of one endpoint: each is counted again and again.
MOST_WATCHED: Final = 20
#: How long messages are signed with the former secret, too.
ROTATION: Final = timedelta(hours=24)


def endpoint_create(
    *,
    http: HttpRequest,
    project: str,
    url: str,
    events: Iterable[str],
    problems: Iterable[str] = (),
    views: Iterable[str] = (),
) -> tuple[Endpoint, str]:
    """Add an endpoint; the second value is its secret, which is shown only once."""
    wanted = _checked(url, events)
    with transaction.atomic():
        if Endpoint.objects.filter(project_id=project).count() >= MOST_ENDPOINTS:
            raise Conflict(f"{project} has {MOST_ENDPOINTS} endpoints; delete one first")
        secret = new_secret()
        made = Endpoint.objects.create(
            project_id=project,
            url=url,
            events=wanted,
            problems=_kinds(problems),
            views=_views(project, views, wanted),
            secret=seal(secret, PURPOSE),
        )
        _record(http, "create", made, None, _described(made))
    return made, secret


def endpoint_update(
    *, http: HttpRequest, endpoint: Endpoint, url: str, events: Iterable[str], enabled: bool,
    problems: Iterable[str] = (), views: Iterable[str] = (),
) -> None:  # fmt: skip
    """Change the URL and the events of an endpoint, and enable or disable it."""
    before = _described(endpoint)
    endpoint.url, endpoint.events = url, _checked(url, events)
    endpoint.problems = _kinds(problems)
    endpoint.views = _views(endpoint.project_id, views, endpoint.events)
    with transaction.atomic():
        if enabled and not endpoint.enabled:
            endpoint.notice, endpoint.failing_since = "", None
        endpoint.enabled = enabled
        endpoint.save(
            update_fields=[
                "url",
                "events",
                "problems",
                "views",
                "enabled",
                "notice",
                "failing_since",
            ]
        )
        if not enabled:
            disable(endpoint.pk, endpoint.notice)
        _record(http, "update", endpoint, before, _described(endpoint))


def endpoint_rotate(*, http: HttpRequest, endpoint: Endpoint) -> str:
    """Replace the secret of an endpoint and return the new one; the former one stays valid for a day."""
    secret = new_secret()
    with transaction.atomic():
        endpoint.former_secret, endpoint.secret = endpoint.secret, seal(secret, PURPOSE)
        endpoint.former_until = timezone.now() + ROTATION
        endpoint.save(update_fields=["secret", "former_secret", "former_until"])
        _record(http, "rotate", endpoint)
    return secret


def reseal_secrets() -> int:
    """Encrypt secrets under the current key; return how many were under a former one.

    A secret that no known key opens is left as it is: it can be read once its key is configured.
    """
    changed = 0
    for endpoint in Endpoint.objects.only("secret", "former_secret"):
        known = (endpoint.secret, endpoint.former_secret)
        try:
            current = tuple(reseal(each, PURPOSE) for each in known)
        except Unsealable as error:
            log.warning("webhook %s: %s; replace its secret", endpoint.pk, error)
            continue
        if current != known:
            same = Endpoint.objects.filter(pk=endpoint.pk, secret=known[0])
            changed += same.update(secret=current[0], former_secret=current[1])
    return changed


def endpoint_delete(*, http: HttpRequest, endpoint: Endpoint) -> None:
    """Delete an endpoint with its deliveries."""
    with transaction.atomic():
        _record(http, "delete", endpoint, _described(endpoint), None)
        endpoint.delete()


def endpoint_ping(*, http: HttpRequest, endpoint: Endpoint) -> Delivery:
    """Send a test message. Raises Conflict for a disabled endpoint."""
    if not endpoint.enabled:
        raise Conflict("the endpoint is disabled; enable it first")
    now = timezone.now()
    with transaction.atomic():
        _record(http, "ping", endpoint)
        return Delivery.objects.create(
            message_id=new_message_id(),
            endpoint=endpoint,
            event=PING,
            subject=f"endpoint/{endpoint.pk}",
            body=body_of(PING, now, {"endpoint": endpoint.pk}),
            next_at=now,
        )


def delivery_replay(*, http: HttpRequest, delivery: Delivery) -> None:
    """Send a delivery again under the same id. Raises Conflict for a disabled endpoint."""
    if not delivery.endpoint.enabled:
        raise Conflict("the endpoint is disabled; enable it first")
    with transaction.atomic():
        again = Delivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.PENDING)
        if again.update(state=DeliveryState.PENDING, attempts=0, next_at=timezone.now()):
            record(http, "replay", f"delivery/{delivery.message_id}",
                   project=delivery.endpoint.project_id)  # fmt: skip


def _checked(url: str, events: Iterable[str]) -> list[str]:
    check_url(url, loopback=settings.TANGRAM_WEBHOOKS_LOOPBACK)
    wanted = sorted(set(events))
    if not wanted:
        raise InvalidRequest("choose at least one event", pointer="/events")
    if not set(wanted) <= set(WebhookEvent.values):
        raise InvalidRequest(f"events are {', '.join(WebhookEvent.values)}", pointer="/events")
    return wanted


def _kinds(problems: Iterable[str]) -> list[str]:
    """Return the chosen kinds of problems; all of them are as none."""
    wanted = sorted(set(problems))
    if not set(wanted) <= KIND_OF.keys():
        raise InvalidRequest(f"kinds of problems are {', '.join(KIND_OF)}", pointer="/problems")
    return [] if len(wanted) == len(KIND_OF) else wanted


def _views(project: str, views: Iterable[str], events: Iterable[str]) -> list[str]:
    """Return the saved views to watch, which members of the project see. Raises InvalidRequest."""
    wanted = sorted(set(views))
    if len(wanted) > MOST_WATCHED:
        raise InvalidRequest(f"an endpoint watches at most {MOST_WATCHED} views", pointer="/views")
    known = SavedView.objects.filter(pk__in=wanted, project=project).values_list("pk", flat=True)
    if set(wanted) - set(known):
        raise InvalidRequest(
            f"choose views that are saved for members of {project}", pointer="/views"
        )
    if not wanted and VIEW_EVENTS & set(events):
        raise InvalidRequest(
            "choose at least one saved view for view.found and view.empty", pointer="/views"
        )
    return wanted


def _record(
    http: HttpRequest,
    verb: str,
    endpoint: Endpoint,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    target = f"webhook/{endpoint.pk}"
    record(http, verb, target, before, after, project=endpoint.project_id)


def _described(endpoint: Endpoint) -> dict[str, Any]:
    """Return the audited values, without secrets."""
    return {
        "url": endpoint.url,
        "events": endpoint.events,
        "enabled": endpoint.enabled,
        **({"problems": endpoint.problems} if endpoint.problems else {}),
        **({"views": endpoint.views} if endpoint.views else {}),
    }
