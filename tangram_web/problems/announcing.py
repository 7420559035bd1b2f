"""Announcement of problems to webhooks: one message when an incident is raised, and one when it is cleared.

A delivery names its incident, so a message that is stored already is not stored again, whatever happened
between the database and Redis. The messages of an incident are stored before Redis says that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import close_old_connections, transaction

from tangram_web.problems.judge import ProblemState, SystemProblem
from tangram_web.webhooks.models import Delivery, Endpoint, WebhookEvent
from tangram_web.webhooks.outbox import MOST_SUBJECT, Message, store_messages


def announce(problems: Sequence[SystemProblem]) -> list[SystemProblem]:
    """Store the messages that are due; return the problems with what was announced.

    Raises django.db.Error; then nothing was stored.
    """
    due = [(each, event) for each in problems if (event := _due(each)) is not None]
    if not due:
        return list(problems)
    close_old_connections()
    with transaction.atomic():
        if Endpoint.objects.filter(enabled=True).exists():
            store_messages(_unsent([_message(each, event) for each, event in due]))
    announced = {each.id: event for each, event in due}
    return [_announced(each, announced.get(each.id)) for each in problems]


def _due(problem: SystemProblem) -> WebhookEvent | None:
    """Return the event that is not announced yet, if there is one."""
    if problem.is_raised and not problem.announced:
        return WebhookEvent.PROBLEM_RAISED
    if problem.state is ProblemState.CLEARED and problem.announced and not problem.clear_announced:
        return WebhookEvent.PROBLEM_CLEARED
    return None


def _announced(problem: SystemProblem, event: WebhookEvent | None) -> SystemProblem:
    if event is WebhookEvent.PROBLEM_RAISED:
        return msgspec.structs.replace(problem, announced=True)
    if event is WebhookEvent.PROBLEM_CLEARED:
        return msgspec.structs.replace(problem, clear_announced=True)
    return problem


def _message(problem: SystemProblem, event: WebhookEvent) -> Message:
    cleared = event is WebhookEvent.PROBLEM_CLEARED
    at = problem.cleared_at if cleared else problem.raised_at
    return Message(
        event,
        f"problem/{problem.incident}"[:MOST_SUBJECT],
        problem.condition.project or None,
        datetime.fromtimestamp(at or 0.0, UTC),
        _data(problem),
        problem.condition.kind,
    )


def _data(problem: SystemProblem) -> dict[str, Any]:
    condition = problem.condition
    return {
        "incident": problem.incident,
        "kind": condition.kind,
        "subject": condition.subject,
        "severity": condition.severity,
        "title": condition.title,
        "detail": condition.detail,
        "since": datetime.fromtimestamp(problem.since, UTC).isoformat().replace("+00:00", "Z"),
        "actions": condition.affected,
        "verb": condition.verb_link,
        "evidence": condition.evidence_link,
    }


def _unsent(messages: Sequence[Message]) -> list[Message]:
    """Leave out messages whose deliveries are stored."""
    subjects = {message.subject for message in messages}
    stored = set(
        Delivery.objects.filter(subject__in=subjects).values_list("subject", "event").distinct()
    )
    return [each for each in messages if (each.subject, str(each.event.value)) not in stored]
