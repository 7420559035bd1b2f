"""What the end of a call means for its API, and whether the call is made again.

An attempt is repeated here and nowhere else, by a new grant, so that quotas count it. Conditions:
nobody wants it ended; nothing of it was sent, or it is replay-safe (I3); it has attempts left, and
the one retry budget of the resource has something left for everybody.
"""

from __future__ import annotations

from domain.apis import Feedback, Verdict
from domain.events import ActionFinished
from domain.ids import ResourceId
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def heed(state: State, live: LiveAction, event: ActionFinished, feedback: Feedback) -> str:
    """Tell the books of the resource; return why the call is not made again, empty if it is."""
    ledger = state.fleet.paced.get(ResourceId(feedback.resource))
    if ledger is None:
        return "its resource is not declared any more"
    granted_at = live.granted_at if live.granted_at is not None else state.now
    ledger.heed(feedback, granted_at, state.now)
    state.dirty = True
    if feedback.verdict is Verdict.OK:
        return "it was answered"
    if live.aborting is not None:
        return "it was to end"
    if feedback.sent and not live.action.replay_safe:
        return "it is not replay_safe"
    return ledger.take_retry(live.attempt)


def heed_holder(state: State, live: LiveAction, feedback: Feedback) -> None:
    """Let the books follow what the holder of a lease heard from what it holds."""
    granted_at = live.granted_at if live.granted_at is not None else state.now
    for allocation in live.allocations:
        ledger = state.fleet.paced.get(allocation.resource)
        if ledger is not None and feedback.resource in ("", allocation.resource):
            ledger.heed(feedback, granted_at, state.now)


def words(event: ActionFinished, feedback: Feedback) -> str:
    """Return what happened to an attempt, for people."""
    if event.detail:
        return event.detail
    if feedback.verdict is Verdict.LIMITED:
        return f"{feedback.resource} wants fewer calls"
    return f"{feedback.resource} answered with an error of its own"
