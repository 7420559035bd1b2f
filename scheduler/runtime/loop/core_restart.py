"""What a leader does at once when its core raised: nothing of that pass stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING, Final

from domain.action import Action, Kind
from domain.events import ActionSubmitted, Event
from domain.ids import ActionId
from scheduler.runtime.loop.poison_messages import CoreRaised, StandBack

if TYPE_CHECKING:
    from scheduler.runtime.loop.scheduler_loop import SchedulerLoop

log = logging.getLogger(__name__)

#: An action that nobody submitted, for seeing whether any would be taken in.
PLAIN: Final = ActionId("act_plain")


def begin_anew(
    loop: SchedulerLoop, raised: CoreRaised, progress: Callable[[], None] = lambda: None
) -> None:
    """Throw the machine away, and let the next passes find what made it raise.

    Raises StandBack when that is no message, and what `SchedulerLoop.take_over` does.
    """
    care, error = loop.care, raised.error
    log.warning("the core raised in a pass of %d messages", len(raised.messages), exc_info=error)
    care.condemned = None
    if not raised.messages:
        raise StandBack(error) from error
    if not raised.alone:
        care.take_less(raised)
        loop.take_over(progress)
        return
    (suspect,) = loop.inbox.handed
    if not care.may_blame(raised):
        raise StandBack(error) from error
    loop.take_over(progress)
    if raised.over is None:
        _acquit_the_state(loop, raised.messages[0])
        loop.take_over(progress)
    care.condemn(suspect, raised, time())


def _acquit_the_state(loop: SchedulerLoop, suspect: Event) -> None:
    """See whether the core decides without the suspect, and on an action that is as plain as can be.

    The machine is of no more use then.
    """
    events: list[Event] = []
    if isinstance(suspect, ActionSubmitted):
        said = suspect.action
        plain = Action(
            id=PLAIN, project=said.project, task=said.task, pool=said.pool, kind=Kind.NOOP
        )
        events.append(ActionSubmitted(action=plain, at=loop.machine.state.now))
    try:
        loop.machine.decide_anew(*events)
    except Exception as error:
        raise StandBack(error) from error
