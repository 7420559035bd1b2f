"""Fold of the journal into changes of the rows of rollouts. Pure: no database, no clock.

Rules
1. The fold starts from the present rows of the rollouts that a batch touches, so any split of the journal into batches
   leads to the same rows.
2. Decisions change the state; events alone are requests and reports. Progress counts while its attempt is assigned.
3. A finished rollout never changes, and only a completed one has a reward (I2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.codec import JournalEntry
from domain.decisions import (
    AssignRollout,
    FinishRollout,
    ParkRollout,
    ResumeRollout,
    WithdrawRollout,
)
from domain.journal_reducer import JournalReducer, on
from domain.rollout_events import RolloutsProgressed, RolloutsSubmitted
from domain.rollouts import Rollout, RolloutOutcome, RolloutState

#: A new row without values; its order is the order of the columns.
BLANK_ROLLOUT: Final[dict[str, Any]] = {
    "id": None, "project": None, "task": None, "handler": "", "instance": "", "group": None, "sample": 0,
    "llm": "", "priority": 0, "state": RolloutState.WAITING.value, "outcome": None, "reward": None,
    "reason": "", "worker": "", "attempt": 0, "stage": None, "queued": False, "turns": 0, "tokens": 0,
    "awaited": "", "metadata": "{}", "door": None, "submitted_at": None, "began_at": None,
    "finished_at": None, "queue_seconds": None, "total_seconds": None, "times": "[]",
    "prompt_tokens": 0, "response_tokens": 0, "first_version": None, "last_version": None,
    "finished_seq": None, "parked_times": 0, "attempts": "[]",
}  # fmt: skip

_ASSIGNED: Final = RolloutState.ASSIGNED.value
_FINISHED: Final = RolloutState.FINISHED.value
#: Decisions of one entry that `finished_seq` can distinguish; as of actions.
_PLACES_PER_ENTRY: Final = 65536
#: Characters of a reason that a row stores, and of one for which an attempt ended.
_REASON_CHARACTERS: Final = 4096
_WHY_CHARACTERS: Final = 300
#: Latest attempts that a row stores: a rollout may be parked any number of times.
KEPT_ATTEMPTS: Final = 32

_encode = msgspec.json.Encoder().encode


class RolloutChange:
    """State of one rollout within a batch, and the changed columns of its row."""

    __slots__ = ("attempt", "attempts", "began", "columns", "is_new", "parked_times", "state")

    def __init__(
        self,
        state: str,
        attempt: int,
        began: bool = False,
        parked_times: int = 0,
        attempts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.state = state
        self.attempt = attempt
        #: It was assigned before.
        self.began = began
        self.parked_times = parked_times
        #: The latest ones, as the row has them.
        self.attempts = tuple(attempts)
        self.columns: dict[str, Any] = {}
        #: There is no row yet, and ``columns`` is all of it.
        self.is_new = False

    def begin_attempt(self, worker: str, at: float) -> None:
        """Record an assignment; one that is recorded already is not changed."""
        if any(each["attempt"] == self.attempt for each in self.attempts):
            return
        self.end_attempt("it was assigned again", at)
        begun = {"attempt": self.attempt, "worker": worker, "at": round(at, 3)}
        self._store((*self.attempts, begun)[-KEPT_ATTEMPTS:])

    def end_attempt(self, reason: str, at: float) -> None:
        """Record that its worker has it no more; the first reason counts."""
        if self.attempts and "until" not in self.attempts[-1]:
            why = _plain(reason)[:_WHY_CHARACTERS]
            ended = {**self.attempts[-1], "until": round(at, 3), "reason": why}
            self._store((*self.attempts[:-1], ended))

    def _store(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        self.attempts = tuple(attempts)
        self.columns["attempts"] = _encode(self.attempts).decode()


class _RolloutIds(JournalReducer):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()

    @on(RolloutsSubmitted)
    def _submitted(self, event: RolloutsSubmitted) -> None:
        self.ids.update(rollout.id for rollout in event.rollouts)

    @on(RolloutsProgressed)
    def _progressed(self, event: RolloutsProgressed) -> None:
        self.ids.update(report.rollout_id for report in event.reports)

    @on(AssignRollout)
    def _assigned(self, decision: AssignRollout) -> None:
        self.ids.add(decision.rollout.id)

    @on(WithdrawRollout, ParkRollout, ResumeRollout, FinishRollout)
    def _moved(
        self, decision: WithdrawRollout | ParkRollout | ResumeRollout | FinishRollout
    ) -> None:
        self.ids.add(decision.rollout_id)


def changed_rollouts(entries: Iterable[JournalEntry]) -> set[str]:
    """Return the ids of all rollouts whose rows ``entries`` may change."""
    found = _RolloutIds()
    for entry in entries:
        found.reduce(entry)
    return found.ids


class RolloutFold(JournalReducer):
    """Collects the changes of one batch of entries."""

    def __init__(self, known: dict[str, RolloutChange], instant: Callable[[float], Any]) -> None:
        super().__init__()
        self.rollouts = known
        self._instant = instant
        self._offset = self._at = 0.0
        self._now: Any = None
        self._place = 0

    def reduce(self, entry: JournalEntry) -> None:
        """Fold one entry."""
        self._offset = entry.wall_offset_seconds
        self._at = entry.at + self._offset
        self._now = self._instant(self._at)
        for event in entry.events:
            self.take(event)
        first = entry.seq * _PLACES_PER_ENTRY
        for self._place, decision in enumerate(entry.decisions, first):
            self.take(decision)

    def _open(self, rollout_id: str) -> RolloutChange | None:
        """Return a rollout that is not finished."""
        found = self.rollouts.get(rollout_id)
        return None if found is None or found.state == _FINISHED else found

    @on(RolloutsSubmitted)
    def _submitted(self, event: RolloutsSubmitted) -> None:
        at = event.at + self._offset if event.at else self._at
        wall = event.accepted_at or at - event.lag_seconds
        for rollout in event.rollouts:
            if rollout.id not in self.rollouts:
                self.rollouts[rollout.id] = _new_row(rollout, self._instant(wall))

    @on(AssignRollout)
    def _assigned(self, decision: AssignRollout) -> None:
        change = self._open(decision.rollout.id)
        if change is None:
            return
        change.state = change.columns["state"] = _ASSIGNED
        change.attempt = change.columns["attempt"] = decision.attempt
        change.columns["worker"] = decision.worker
        change.begin_attempt(decision.worker, self._at)
        if not change.began:
            change.began = True
            change.columns["began_at"] = self._now

    @on(RolloutsProgressed)
    def _progressed(self, event: RolloutsProgressed) -> None:
        for report in event.reports:
            change = self._open(report.rollout_id)
            if change is None or change.state != _ASSIGNED or change.attempt != report.attempt:
                continue
            progress = report.progress
            change.columns.update(
                stage=None if progress.stage is None else progress.stage.value,
                queued=progress.queued, turns=progress.turns, tokens=progress.tokens,
                awaited=_plain(progress.awaited),
            )  # fmt: skip

    @on(WithdrawRollout, ResumeRollout)
    def _waits(self, decision: WithdrawRollout | ResumeRollout) -> None:
        self._move(decision.rollout_id, RolloutState.WAITING, decision.reason)

    @on(ParkRollout)
    def _parked(self, decision: ParkRollout) -> None:
        self._move(decision.rollout_id, RolloutState.PARKED, decision.reason)
        if (change := self._open(decision.rollout_id)) is not None:
            change.parked_times += 1
            change.columns["parked_times"] = change.parked_times

    def _move(self, rollout_id: str, state: RolloutState, reason: str) -> None:
        change = self._open(rollout_id)
        if change is not None:
            change.state = state.value
            change.end_attempt(reason, self._at)
            change.columns.update(
                state=state.value, worker="", stage=None, queued=False, awaited="",
                reason=_plain(reason),
            )  # fmt: skip

    @on(FinishRollout)
    def _finished(self, decision: FinishRollout) -> None:
        change = self._open(decision.rollout_id)
        if change is None:
            return
        result = decision.result
        completed = result.outcome is RolloutOutcome.COMPLETED
        first, last = result.weights_versions or (None, None)
        change.state = _FINISHED
        change.end_attempt(result.outcome.value, self._at)
        change.columns.update(
            state=_FINISHED, outcome=result.outcome.value, reward=result.reward if completed else None,
            reason=_plain(result.reason), worker=decision.worker, attempt=decision.attempts, stage=None,
            queued=False, awaited="", turns=result.turns, tokens=result.prompt_tokens + result.response_tokens,
            finished_at=self._now, queue_seconds=decision.queue_seconds,
            total_seconds=decision.total_seconds, times=_encode(result.times).decode(),
            prompt_tokens=result.prompt_tokens, response_tokens=result.response_tokens,
            first_version=first, last_version=last, finished_seq=self._place,
        )  # fmt: skip


def _new_row(rollout: Rollout, submitted_at: Any) -> RolloutChange:
    change = RolloutChange(RolloutState.WAITING.value, 0)
    change.is_new = True
    change.columns = BLANK_ROLLOUT | {
        "id": rollout.id, "project": rollout.project, "task": rollout.task, "handler": rollout.handler,
        "instance": _plain(rollout.instance), "sample": rollout.sample, "llm": rollout.llm,
        "group": None if rollout.group is None else _plain(rollout.group),
        "priority": rollout.priority, "metadata": _encode(rollout.metadata).decode(),
        "door": rollout.door or None, "submitted_at": submitted_at,
    }  # fmt: skip
    return change


def _plain(text: str) -> str:
    """Return a text of bounded length without U+0000, which PostgreSQL refuses."""
    return text[:_REASON_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")
