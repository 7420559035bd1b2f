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
            verb, target, after = _told(event)
            yield AskedVerb(
                asked=event.asked,
                verb=verb,
                target=target,
                project=getattr(event, "project", ""),
                after=after,
                at=entry.wall_offset_seconds + event.at,
            )


def _told(event: _Asked) -> tuple[str, str, dict[str, Any]]:
    """Return verb, target and what was asked for."""
    if isinstance(event, ActionCancelRequested):
        return "cancel", f"action/{event.action_id}", {"reason": event.reason}
    if isinstance(event, ServiceEvictionAsked):
        return "evict", f"service/{event.service}", {}
    task = f"task/{task_key(event.project, event.task)}"
    if isinstance(event, TaskPaused):
        return "pause" if event.paused else "resume", task, {"paused": event.paused}
    if isinstance(event, TaskPrioritised):
        return "prioritise", task, {"priority": event.priority}
    return "cancel", task, {"reason": event.reason}
