"""Answers of the scheduler, limited to what a reader may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from contract.responses import QueuesResponse, WaitDetails
from domain.errors import Unavailable
from tangram_web.dashboard.selectors import names_hidden_from
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord

T = TypeVar("T")


def why_waiting(sight: Sight, record: ActionRecord) -> tuple[WaitDetails | None, str]:
    """Return why a queued action waits, or why the scheduler did not answer."""
    live, problem = asked(lambda: scheduler_client.live_action(record.id))
    if live is None or live.waiting is None:
        return None, problem
    return without_hidden_names(sight, [live.waiting])[0], problem


def queues_seen_by(sight: Sight) -> QueuesResponse:
    """Return the queues, or the part of them that may be seen. Raises Unavailable."""
    found = (
        scheduler_client.queues()
        if sight.everything
        else scheduler_client.queues(projects=sight.projects)
    )
    reasons = without_hidden_names(sight, [queue.why for queue in found.items])
    for queue, why in zip(found.items, reasons, strict=True):
        queue.why = why
    return found


def shares_seen_by(sight: Sight, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shares of projects that may be seen."""
    return [share for share in status.get("shares", []) if sight.sees(share["project"])]


def without_hidden_names(sight: Sight, waits: Sequence[WaitDetails]) -> list[WaitDetails]:
    """Return ``waits`` without names of actions and trajectories that may not be seen."""
    hidden = names_hidden_from(sight, (why.blocked_by for why in waits if why.blocked_by))
    for why in waits:
        for idle in () if why.relief is None else why.relief.idle:
            if not sight.sees(idle.project):
                idle.project = idle.trajectory = ""
    return [_without_blocker(why) if why.blocked_by in hidden else why for why in waits]


def _without_blocker(why: WaitDetails) -> WaitDetails:
    reason = why.reason.replace(why.blocked_by or "", "an action of another project")
    return msgspec.structs.replace(why, reason=reason, blocked_by=None)


def asked(question: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result of ``question``, or why the scheduler did not answer."""
    try:
        return question(), ""
    except Unavailable as error:
        return None, str(error)
