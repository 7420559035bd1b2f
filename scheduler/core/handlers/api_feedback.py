"""API feedback: attempts at calls are reported to ledgers, and failed attempts may be repeated.

An attempt is repeated only here, by a new grant, so that quotas count it. Conditions: the action is
not being aborted; the request was not sent, or the action is replay-safe (I3); the action has
attempts left, and so has the retry budget that all calls of the resource share.
"""

from __future__ import annotations

from domain.apis import Feedback, Verdict
from domain.events import ActionFinished
from domain.ids import ResourceId
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def apply_report(state: State, live: LiveAction, event: ActionFinished, feedback: Feedback) -> str:
    """Report an attempt to the ledger of its API; return why it is not repeated, empty if it is."""
    ledger = state.supply.paced.get(ResourceId(feedback.resource))
    if ledger is None:
        return "its resource is not declared any more"
    granted_at = live.granted_at if live.granted_at is not None else state.now
    ledger.apply_feedback(feedback, granted_at, state.now)
    state.dirty = True
    if feedback.verdict is Verdict.OK:
        return "it was answered"
    if live.aborting is not None:
        return "it was to end"
    if feedback.sent and not live.action.replay_safe:
        return "it is not replay_safe"
    return ledger.take_retry(live.attempt)


def apply_lease_feedback(state: State, live: LiveAction, feedback: Feedback) -> None:
    """Report to the ledgers of a lease what its holder observed of the API."""
    granted_at = live.granted_at if live.granted_at is not None else state.now
    for allocation in live.allocations:
        ledger = state.supply.paced.get(allocation.resource)
        if ledger is not None and feedback.resource in ("", allocation.resource):
            ledger.apply_feedback(feedback, granted_at, state.now)


def describe_attempt(event: ActionFinished, feedback: Feedback) -> str:
    """Return a sentence about the end of an attempt."""
    if event.detail:
        return event.detail
    if feedback.verdict is Verdict.LIMITED:
        return f"{feedback.resource} wants fewer calls"
    return f"{feedback.resource} answered with an error of its own"
