"""Poison messages: a search by bisection for the message that makes the core raise.

A pass in which the core raises commits nothing. The passes after it take fewer messages, so that
good ones are committed while the search goes on; a message that makes the core raise alone is set
aside as a dead letter. Where a waiting action is the cause (`poisoned_grants`), it is ended, and its
letter holds its submission. `docs/decisions/0048` and `0068` have the reasons. Nothing here reads Redis.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Final

from domain.action import Action, Kind, Outcome
from domain.codec import encode
from domain.dead_letters import GRANT, INBOX, DeadLetter, dead_letter
from domain.decisions import Refuse
from domain.errors import TangramError
from domain.events import (
    ActionFinished,
    ActionSetAside,
    ActionSubmitted,
    Event,
    FileRequested,
    NodeForgetAsked,
    ServicePrepared,
    TrajectoriesForked,
)
from domain.ids import ActionId
from domain.rollout_events import RolloutFinished, RolloutsSubmitted
from domain.rollouts import RolloutOutcome, RolloutResult
from scheduler.core.machine import Machine
from scheduler.runtime.loop.inbox import InboxMessage
from scheduler.runtime.loop.poisoned_grants import PROBE, find_poisoned_grant, waiting
from scheduler.runtime.loop.rehearsal import STEP_SECONDS, Ending, PassTooLong, rehearse

log = logging.getLogger(__name__)

#: Messages that a requester waits for.
_ANSWERED: Final = (FileRequested, NodeForgetAsked, TrajectoriesForked)
#: A limit of this many messages is lifted.
ALL_FROM: Final = 4096
#: So many messages of one kind in a row were blamed: the state itself may be wrong.
MOST_IN_A_ROW: Final = 32
#: Pause of a leader when no message is to blame: the first, the longest, and the time without one after
#: which the next pause is the first again.
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
WELL_SECONDS: Final = 300.0
#: So long after a failed pass, passes are rehearsed.
REHEARSE_SECONDS: Final = 10.0


class CoreRaised(TangramError):
    """The core raised within a pass; its machine is unusable, and nothing was committed."""

    def __init__(
        self,
        messages: Sequence[Event],
        over: Event | None,
        alone: bool,
        events: Sequence[Event] = (),
        actions: Sequence[ActionId] = (),
    ) -> None:
        """``over``: the event whose handler raised, if one did; ``alone``: the pass had no other event.

        ``events``: all of the pass; ``actions``: what the cycle decided about when it raised.
        """
        super().__init__()
        self.messages = messages
        self.over = over
        self.alone = alone
        self.events = events
        self.actions = actions

    @property
    def lonely(self) -> bool:
        """Whether fewer messages would not help."""
        return self.alone or not self.messages

    def submission_of(self, action: ActionId) -> ActionSubmitted | None:
        """Return the message that submits ``action``, if one of this pass does."""
        of = (m for m in self.messages if isinstance(m, ActionSubmitted) and m.action.id == action)
        return next(of, None)

    @property
    def error(self) -> Exception:
        """The exception of the core."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


class NoMessageToBlame(TangramError):
    """The core raises, and no message is to blame: nothing may be set aside."""

    def __init__(self, error: Exception, where: str = "") -> None:
        super().__init__(f"the core raises {one_line(error)}{where}, and no message is to blame")
        self.error = error


def one_line(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}"[:500]


@dataclass
class PoisonMessage:
    """A message that is proven to make the core raise; the next pass sets it aside."""

    handed: InboxMessage
    letter: DeadLetter
    stand_in: Event | None
    refusal: Refuse | None


@dataclass
class PoisonedGrant:
    """An action that is proven to make the cycle raise or hang; the next pass ends it."""

    letter: DeadLetter
    end: ActionSetAside
    #: Its submission is still in the inbox; else it waits already.
    submitted: bool


@dataclass
class Caution:
    """How many messages a pass may take, and which message is to blame."""

    #: Most messages of the next pass; None: all that have arrived.
    limit: int | None = None
    condemned: PoisonMessage | None = None
    #: By action, until they are ended.
    poisoned: dict[ActionId, PoisonedGrant] = field(default_factory=dict)
    #: Messages that were blamed, by kind, since one of their kind was handled.
    in_a_row: Counter[type] = field(default_factory=Counter)
    #: Passes are rehearsed until then, by a monotonic clock.
    rehearse_until: float = float("-inf")
    #: A rehearsal hung and nothing was to blame: the pass may only be long.
    doubted: bool = False
    _pause_seconds: float = 0.0
    _paused_at: float = float("-inf")

    def begin(self, hung: bool, now: float) -> None:
        """Begin a term. ``hung``: the leader before hung where this one continues. ``now``: monotonic."""
        if hung and not self.doubted:
            self.rehearse_until = now + REHEARSE_SECONDS

    @property
    def calm(self) -> bool:
        """Whether no message and no action is under suspicion."""
        return self.limit is None and not self.in_a_row and not self.poisoned

    def rehearses(self, now: float) -> bool:
        """Whether passes are rehearsed now."""
        return now < self.rehearse_until

    def rehearse(self, machine: Machine, events: Sequence[Event], messages: int) -> None:
        """Rehearse a pass. Raises CoreRaised when it hangs; one that raises does so when it is done."""
        found = rehearse(machine, events)
        if found.ending is Ending.HUNG:
            self.rehearse_until = monotonic() + REHEARSE_SECONDS
            over = None if found.event is None else events[found.event]
            raise CoreRaised(
                events[:messages], over, self.limit == 1, events, found.actions
            ) from PassTooLong()

    def take_less(self, raised: CoreRaised) -> None:
        """Let the next pass stop before the event that raised, if that is known; else halfway."""
        places = [n for n, event in enumerate(raised.messages) if event is raised.over]
        before = places[0] if places else len(raised.messages) // 2
        self.limit = max(1, before)

    def went_well(self, messages: Iterable[Event], all_taken: bool) -> None:
        """Let the next pass take more. ``all_taken``: the inbox is empty."""
        for kind in {type(message) for message in messages}:
            self.in_a_row.pop(kind, None)
        if self.limit is not None:
            self.limit *= 2
            if all_taken or self.limit >= ALL_FROM:
                self.limit = None

    def may_blame(self, raised: CoreRaised) -> bool:
        """Whether the one message of that pass may be to blame."""
        if not raised.alone or len(raised.messages) != 1:
            return False
        (message,) = raised.messages
        if raised.over is not message and not isinstance(message, ActionSubmitted):
            return False  # the core may have raised over actions that other messages brought
        kind = type(message)
        if self.in_a_row[kind] >= MOST_IN_A_ROW:
            self.in_a_row[kind] = MOST_IN_A_ROW - 1  # one more after each pause
            return False
        return True

    def condemn(self, handed: InboxMessage, raised: CoreRaised, at: float) -> PoisonMessage:
        """Record that the one message of that pass is to blame. ``at``: wall clock."""
        (message,) = raised.messages
        self.in_a_row[type(message)] += 1
        place = handed.place.decode(errors="replace")
        letter = dead_letter(INBOX, handed.entry_id, place, handed.body, raised.error, at)
        letter.reason = f"made the core raise {one_line(raised.error)}"
        kind = type(raised.error).__name__
        why = f"the scheduler could not handle it ({kind}) and set it aside as {letter.name}"
        replacement, refusal = stand_in(message, why), refusal_of(message, why)
        letter.settled = replacement is not None or refusal is not None
        self.condemned = PoisonMessage(handed, letter, replacement, refusal)
        return self.condemned

    def blame(self, action: Action, raised: CoreRaised, at: float) -> None:
        """Record that an action is to blame when it is to be granted. ``at``: wall clock.

        Raises NoMessageToBlame when too many were in a row.
        """
        if self.in_a_row[ActionSetAside] >= MOST_IN_A_ROW:
            self.in_a_row[ActionSetAside] = MOST_IN_A_ROW - 1
            raise NoMessageToBlame(raised.error)
        self.in_a_row[ActionSetAside] += 1
        body = encode(ActionSubmitted(action=action))
        letter = dead_letter(GRANT, action.id, "cycle", body, raised.error, at)
        letter.reason = f"made the core raise {one_line(raised.error)}, when it was to be granted"
        letter.settled = True
        kind = type(raised.error).__name__
        why = f"the scheduler could not grant it ({kind}) and set it aside as {letter.name}"
        end = ActionSetAside(action_id=action.id, why=why)
        submitted = raised.submission_of(action.id) is not None
        self.poisoned[action.id] = PoisonedGrant(letter, end, submitted)

    def end_poisoned(self, events: Sequence[Event]) -> tuple[list[Event], list[PoisonedGrant]]:
        """Return ``events`` with submissions of poisoned actions replaced, and the actions that they end."""
        if not self.poisoned:
            return list(events), []
        replaced: list[Event] = []
        found: list[PoisonedGrant] = []
        for event in events:
            submits = isinstance(event, ActionSubmitted)
            name = event.action.id if isinstance(event, ActionSubmitted) else None
            if isinstance(event, ActionSetAside):
                name = event.action_id
            poisoned = self.poisoned.get(name) if name is not None else None
            if poisoned is not None:
                found.append(poisoned)
            instead = stand_in(event, poisoned.end.why) if poisoned and submits else None
            replaced.append(instead or event)
        return replaced, found

    def doubt(self, error: NoMessageToBlame) -> None:
        """Rehearse no more if nothing was to blame for a rehearsal that hung."""
        if isinstance(error.error, PassTooLong):
            self.doubted, self.rehearse_until = True, float("-inf")

    def granted(self) -> None:
        """Record that an action was granted: not all of them fail."""
        self.in_a_row.pop(ActionSetAside, None)

    def pause_seconds(self, now: float) -> float:
        """Return the length of this pause. ``now``: a monotonic clock."""
        quiet = now - self._paused_at > WELL_SECONDS + self._pause_seconds
        longer = FIRST_PAUSE_SECONDS if quiet else 2 * self._pause_seconds
        self._pause_seconds = min(longer, LONGEST_PAUSE_SECONDS)
        self._paused_at = now
        return self._pause_seconds


def stand_in(message: Event, why: str) -> Event | None:
    """Return the event that replaces ``message``, so that no action waits for it for ever."""
    if isinstance(message, ActionSubmitted):
        return ActionSubmitted(
            action=message.action,
            accepted_at=message.accepted_at,
            lag_seconds=message.lag_seconds,
            set_aside=why,
        )
    if isinstance(message, ActionFinished):
        unstarted = message.never_started
        return ActionFinished(
            action_id=message.action_id,
            node=message.node,
            outcome=Outcome.INFRA_FAILED if unstarted else Outcome.UNKNOWN,
            attempt=message.attempt,
            execution_seconds=message.execution_seconds,
            detail=why,
            never_started=unstarted,
            chunk=message.chunk,
        )
    if isinstance(message, RolloutsSubmitted):
        return RolloutsSubmitted(
            rollouts=message.rollouts,
            accepted_at=message.accepted_at,
            lag_seconds=message.lag_seconds,
            set_aside=why,
        )
    if isinstance(message, RolloutFinished):
        failed = RolloutResult(RolloutOutcome.INFRA_FAILED, reason=why)
        return RolloutFinished(
            rollout_id=message.rollout_id,
            worker=message.worker,
            attempt=message.attempt,
            result=failed,
        )
    if isinstance(message, ServicePrepared):
        return ServicePrepared(
            node=message.node, home=message.home, awake=False, failed=why, chunk=message.chunk
        )
    return None


def refusal_of(message: Event, why: str) -> Refuse | None:
    """Return the refusal for the requester that waits for an answer to ``message``, if one does."""
    if isinstance(message, _ANSWERED) and message.reply_to:
        return Refuse(message.request_id, message.reply_to, "failed", why)
    return None


def restart_core(
    raised: CoreRaised,
    caution: Caution,
    handed: Sequence[InboxMessage],
    recover: Callable[[], Machine],
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Recover the machine, and prepare the next passes for finding the cause.

    ``handed``: the messages of the pass in which the core raised. Raises NoMessageToBlame when neither a
    message nor a waiting action is to blame, and what ``recover`` raises.
    """
    error = raised.error
    log.warning("the core raised in a pass of %d messages", len(raised.messages), exc_info=error)
    caution.condemned = None
    machine = recover()
    if raised.over is None and _blame_grant(raised, caution, machine, progress):
        return
    if not raised.messages:
        raise NoMessageToBlame(error) from error
    if not raised.alone:
        caution.take_less(raised)
        return
    (suspect,) = handed
    if not caution.may_blame(raised):
        raise NoMessageToBlame(error) from error
    _check_message(raised, machine)
    caution.condemn(suspect, raised, time())


def _blame_grant(
    raised: CoreRaised, caution: Caution, machine: Machine, progress: Callable[[], None]
) -> bool:
    """Find the action to blame for the cycle, if one is; return whether the next pass is prepared."""
    suspects = list(raised.actions)
    name = find_poisoned_grant(machine, raised.events, suspects, progress)
    if name is None and raised.lonely:
        suspects = waiting(machine, raised.messages)
        name = find_poisoned_grant(machine, raised.events, suspects, progress)
    if name is None:
        return False
    message = raised.submission_of(name)
    action = machine.state.actions[name].action if message is None else message.action
    caution.blame(action, raised, time())
    return True


def _check_message(raised: CoreRaised, machine: Machine) -> None:
    """Check that the one message of that pass is the cause. Raises NoMessageToBlame when it may not be.

    Where the cycle raised: that it succeeds with the plainest action in the place of the submission. Where a
    handler hangs: that it hangs for longer than any handler may take.
    """
    (suspect,) = raised.messages
    if raised.over is not None:
        hangs = isinstance(raised.error, PassTooLong)
        if hangs and rehearse(machine, [suspect], step_cpu_seconds=STEP_SECONDS).well:
            raise NoMessageToBlame(raised.error)
        return
    events: list[Event] = []
    if isinstance(suspect, ActionSubmitted):
        like = suspect.action
        plain = Action(
            id=PROBE, project=like.project, task=like.task, pool=like.pool, kind=Kind.NOOP
        )
        events.append(ActionSubmitted(action=plain, at=machine.state.now))
    if not rehearse(machine, events, all_queues=True).well:
        raise NoMessageToBlame(raised.error)
