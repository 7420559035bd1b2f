"""What a leader does after its core raised: who may be blamed, and how much to take next.

Nothing here reads a clock or Redis; `loop` acts on it, decision 0048 says why. Careful passes take few
messages, so that what raises is found by taking less and less, and what is well is committed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.action import Outcome
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
from scheduler.runtime.loop.inbox import Handed

#: From so many messages on, a pass takes all that came again.
ALL_FROM: Final = 4096
#: More of one kind in a row were not to blame: something is wrong with the state.
MOST_IN_A_ROW: Final = 32
#: How long a leader stands back when no message is to blame: at first, at most, and how long all has to
#: be well before it begins again with the first.
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
WELL_SECONDS: Final = 300.0


class CoreRaised(TangramError):
    """The core raised within a pass; its machine is of no more use, and nothing was committed."""

    def __init__(self, messages: Sequence[Event], over: Event | None, alone: bool) -> None:
        """``over``: whose handler raised, if one did; ``alone``: nothing else was in the pass."""
        super().__init__()
        self.messages = messages
        self.over = over
        self.alone = alone

    @property
    def error(self) -> Exception:
        """What it raised."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


class StandBack(TangramError):
    """The core raises, and no message is to blame: nothing may be set aside."""

    def __init__(self, error: Exception, where: str = "") -> None:
        super().__init__(f"the core raises {told(error)}{where}, and no message is to blame")


def told(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}"[:500]


@dataclass
class Condemned:
    """A message that is proven to make the core raise, until it is set aside."""

    handed: Handed
    letter: DeadLetter
    stand_in: Event | None
    refusal: Refuse | None


@dataclass
class Care:
    """How careful the passes of one loop are."""

    #: Messages that the next pass takes at most; None: all that came, as long as all is well.
    limit: int | None = None
    condemned: Condemned | None = None
    #: Messages that were blamed, by kind, since one of their kind went well.
    in_a_row: Counter[type] = field(default_factory=Counter)
    _pause_seconds: float = 0.0
    _paused_at: float = float("-inf")

    def take_less(self, raised: CoreRaised) -> None:
        """Let the next pass stop before what raised, where that is known; else halfway."""
        places = [n for n, event in enumerate(raised.messages) if event is raised.over]
        before = places[0] if places else len(raised.messages) // 2
        self.limit = max(1, before)

    def went_well(self, messages: Iterable[Event], all_taken: bool) -> None:
        """Let the next pass take more. ``all_taken``: nothing waits any more."""
        for kind in {type(message) for message in messages}:
            self.in_a_row.pop(kind, None)
        if self.limit is not None:
            self.limit *= 2
            if all_taken or self.limit >= ALL_FROM:
                self.limit = None

    def may_blame(self, raised: CoreRaised) -> bool:
        """Say whether the one message of that pass may be what makes the core raise."""
        if not raised.alone or len(raised.messages) != 1:
            return False
        (message,) = raised.messages
        if raised.over is not message and not isinstance(message, ActionSubmitted):
            return False  # what it set free or changed is planned by what others sent
        kind = type(message)
        if self.in_a_row[kind] >= MOST_IN_A_ROW:
            self.in_a_row[kind] = MOST_IN_A_ROW - 1  # one more after each pause
            return False
        return True

    def condemn(self, handed: Handed, raised: CoreRaised, at: float) -> Condemned:
        """Note that the one message of that pass is to blame. ``at``: wall clock."""
        (message,) = raised.messages
        self.in_a_row[type(message)] += 1
        place = handed.place.decode(errors="replace")
        letter = dead_letter(INBOX, handed.entry_id, place, handed.body, raised.error, at)
        letter.reason = f"made the core raise {told(raised.error)}"
        kind = type(raised.error).__name__
        why = f"the scheduler could not take it in ({kind}) and set it aside as {letter.name}"
        replacement, refusal = stand_in(message, why), refusal_of(message, why)
        letter.settled = replacement is not None or refusal is not None
        self.condemned = Condemned(handed, letter, replacement, refusal)
        return self.condemned

    def pause_seconds(self, now: float) -> float:
        """Return how long to stand back this time. ``now``: any clock that never runs backward."""
        quiet = now - self._paused_at > WELL_SECONDS + self._pause_seconds
        longer = FIRST_PAUSE_SECONDS if quiet else 2 * self._pause_seconds
        self._pause_seconds = min(longer, LONGEST_PAUSE_SECONDS)
        self._paused_at = now
        return self._pause_seconds


def stand_in(message: Event, why: str) -> Event | None:
    """Return what the core is told instead of ``message``, so that nothing waits for it for ever."""
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
    """Return what whoever waits for an answer to ``message`` is told, if somebody does."""
    if isinstance(message, (FileRequested, NodeForgetAsked)) and message.reply_to:
        return Refuse(message.request_id, message.reply_to, "failed", why)
    return None
