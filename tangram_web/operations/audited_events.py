"""Events for the scheduler with their audit entry: both are written, or neither."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import HttpRequest

from tangram_web.audit.services import record
from tangram_web.lib.scheduler_client import send_commands
from tangram_web.operations.verb import Target


def record_and_send(
    request: HttpRequest, verb: str, target: Target, before: Any, after: Any, *events: Any
) -> None:
    """Write the audit entry of ``verb`` on ``target`` and put ``events`` into the inbox."""
    with transaction.atomic():
        aim = f"{target.kind}/{target.name}"
        record(request, verb, aim, before, after, project=target.project)
        send_commands(*events)
