"""Poison messages: a search by bisection for the message that makes the core raise.

A pass in which the core raises commits nothing. The passes after it take fewer messages, so that
good ones are committed while the search goes on; a message that makes the core raise alone is set
aside as a dead letter. `docs/decisions/0048` has the reasons. Nothing here reads Redis.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Final

from domain.action import Action, Kind, Outcome
from domain.dead_letters import INBOX, DeadLetter, dead_letter
from domain.decisions import Refuse
from domain.errors import TangramError
from domain.events import (
    ActionFinished,
    ActionSubmitted,
    Event,
    FileRequested,
    NodeForgetAsked,
    ServicePrepared,
)
from domain.ids import ActionId
from scheduler.core.machine import Machine
from scheduler.runtime.loop.inbox import InboxMessage

log = logging.getLogger(__name__)

#: A limit of this many messages is lifted.
ALL_FROM: Final = 4096
#: So many messages of one kind in a row were blamed: the state itself may be wrong.
MOST_IN_A_ROW: Final = 32
#: Pause of a leader when no message is to blame: the first, the longest, and the time without one after
#: which the next pause is the first again.
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
WELL_SECONDS: Final = 300.0
#: Id of an action that no client submitted: the restart tests the core with it.
PROBE: Final = ActionId("act_plain")


class CoreRaised(TangramError):
    """The core raised within a pass; its machine is unusable, and nothing was committed."""

    def __init__(self, messages: Sequence[Event], over: Event | None, alone: bool) -> None:
        """``over``: the event whose handler raised, if one did; ``alone``: the pass had no other event."""
        super().__init__()
        self.messages = messages
        self.over = over
        self.alone = alone

    @property
    def error(self) -> Exception:
        """The exception of the core."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


class NoMessageToBlame(TangramError):
    """The core raises, and no message is to blame: nothing may be set aside."""

    def __init__(self, error: Exception, where: str = "") -> None:
        super().__init__(f"the core raises {one_line(error)}{where}, and no message is to blame")


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
class Caution:
    """How many messages a pass may take, and which message is to blame."""

    #: Most messages of the next pass; None: all that have arrived.
    limit: int | None = None
    condemned: PoisonMessage | None = None
    #: Messages that were blamed, by kind, since one of their kind was handled.
    in_a_row: Counter[type] = field(default_factory=Counter)
    _pause_seconds: float = 0.0
    _paused_at: float = float("-inf")

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
    if isinstance(message, ServicePrepared):
        return ServicePrepared(
            node=message.node, home=message.home, awake=False, failed=why, chunk=message.chunk
        )
    return None


def refusal_of(message: Event, why: str) -> Refuse | None:
    """Return the refusal for the requester that waits for an answer to ``message``, if one does."""
    if isinstance(message, (FileRequested, NodeForgetAsked)) and message.reply_to:
        return Refuse(message.request_id, message.reply_to, "failed", why)
    return None


def restart_core(
    raised: CoreRaised,
    caution: Caution,
    handed: Sequence[InboxMessage],
    recover: Callable[[], Machine],
) -> None:
    """Recover the machine, and prepare the next passes for finding the message to blame.

    ``handed``: the messages of the pass in which the core raised. Raises NoMessageToBlame when no message is
    to blame, and what ``recover`` raises.
    """
    error = raised.error
    log.warning("the core raised in a pass of %d messages", len(raised.messages), exc_info=error)
    caution.condemned = None
    if not raised.messages:
        raise NoMessageToBlame(error) from error
    if not raised.alone:
        caution.take_less(raised)
        recover()
        return
    (suspect,) = handed
    if not caution.may_blame(raised):
        raise NoMessageToBlame(error) from error
    machine = recover()
    if raised.over is None:
        _check_state(machine, raised.messages[0])
        recover()
    caution.condemn(suspect, raised, time())


def _check_state(machine: Machine, suspect: Event) -> None:
    """Check that the core decides without the suspect, and on the plainest action in its place.

    Leaves the machine unusable. Raises NoMessageToBlame when the core raises here, too.
    """
    events: list[Event] = []
    if isinstance(suspect, ActionSubmitted):
        like = suspect.action
        plain = Action(
            id=PROBE, project=like.project, task=like.task, pool=like.pool, kind=Kind.NOOP
        )
        events.append(ActionSubmitted(action=plain, at=machine.state.now))
    try:
        machine.dry_run(*events)
    except Exception as error:
        raise NoMessageToBlame(error) from error
