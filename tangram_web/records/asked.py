"""What was asked of the gateway and belongs into the audit, as journal entries have it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from domain.codec import JournalEntry
from domain.events import ActionCancelRequested
from tangram_web.audit.services import AskedVerb


def asked_verbs(entries: Iterable[JournalEntry]) -> Iterator[AskedVerb]:
    """Yield the verbs that came through the gateway."""
    for entry in entries:
        for event in entry.events:
            if isinstance(event, ActionCancelRequested) and event.asked is not None:
                yield AskedVerb(
                    asked=event.asked,
                    verb="cancel",
                    target=f"action/{event.action_id}",
                    project=event.project,
                    after={"reason": event.reason},
                    at=entry.wall_offset_seconds + event.at,
                )
