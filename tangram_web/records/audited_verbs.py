"""What was asked of the gateway and belongs into the audit, as journal entries have it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from domain.codec import JournalEntry
from domain.events import (
    ActionCancelRequested,
    ServiceEvictionAsked,
    TaskCancelRequested,
    TaskPaused,
    TaskPrioritised,
)
from domain.ids import task_key
from tangram_web.audit.services import AskedVerb

_Asked = (
    ActionCancelRequested | ServiceEvictionAsked | TaskCancelRequested | TaskPaused
    | TaskPrioritised
)  # fmt: skip
_ASKED: Final = get_args(_Asked)


def asked_verbs(entries: Iterable[JournalEntry]) -> Iterator[AskedVerb]:
    """Yield the verbs that came through the gateway."""
    for entry in entries:
        for event in entry.events:
            if not isinstance(event, _ASKED) or event.asked is None:
                continue
            verb, target, project, after = _told(event)
            yield AskedVerb(
                asked=event.asked,
                verb=verb,
                target=target,
                project=project,
                after=after,
                at=entry.wall_offset_seconds + event.at,
            )


def _told(event: _Asked) -> tuple[str, str, str, dict[str, Any]]:
    """Return verb, target, project (empty: of none) and what was asked for."""
    if isinstance(event, ServiceEvictionAsked):
        return "evict", f"service/{event.service}", "", {}
    project = event.project
    if isinstance(event, ActionCancelRequested):
        return "cancel", f"action/{event.action_id}", project, {"reason": event.reason}
    task = f"task/{task_key(project, event.task)}"
    if isinstance(event, TaskPaused):
        verb = "pause" if event.paused else "resume"
        return verb, task, project, {"paused": event.paused}
    if isinstance(event, TaskPrioritised):
        return "prioritise", task, project, {"priority": event.priority}
    return "cancel", task, project, {"reason": event.reason}
