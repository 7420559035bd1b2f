"""Events of selectors: loads of stages, changes of profiles, and pins.

Trainers and measurements send them through the gateway. Beside them, generations and rollouts that a selector observes tell contexts
(`scheduler.core.residency.selector_handlers`). The core answers a load with the decision `SetParallelism` where the degree changes.

Every event may arrive twice; one of a selector or a stage that is not known changes nothing.
"""

from __future__ import annotations

from domain.event_base import EventBase, RequestOrigin
from domain.selectors import Parallelism, ParallelismProfile, SelectorStage, StageLoad


class SelectorObserved(EventBase):
    """A trainer reported the load of a step, or asked for the degree of its next stage."""

    selector: str
    load: StageLoad
    stage: SelectorStage = SelectorStage.ROLLOUT
    #: Number of the step; the same step with the same load again changes nothing. None: each counts.
    step: int | None = None
    #: This stage begins now: calls of the service get its degree from now on.
    begins: bool = False
    asked: RequestOrigin | None = None


class SelectorProfiled(EventBase):
    """Cells and costs of a profile were measured: they are added, or replace those of the same place."""

    selector: str
    change: ParallelismProfile
    asked: RequestOrigin | None = None


class SelectorPinned(EventBase):
    """The degree of all stages was bound, or is selected again."""

    selector: str
    #: None: no pin.
    parallelism: Parallelism | None = None
    #: Although it would run out of memory.
    forced: bool = False
    asked: RequestOrigin | None = None


class SelectorsQueried(EventBase):
    """Query of selectors. Answered by the loop, never journalled.

    The answer is `contract.selector_status.SelectorsStatus`.
    """

    request_id: str
    reply_to: str
    #: One selector; empty: all.
    selector: str = ""
    #: Cells of the profile in use, and loads and switches, are part of the answer.
    cells: bool = False
    history: bool = False
    #: A choice for this load is part of the answer; it changes nothing.
    load: StageLoad | None = None
    stage: SelectorStage = SelectorStage.ROLLOUT
    #: The load was observed just before: its choice is the answer.
    observed: bool = False
    #: Whether this pin would be refused is part of the answer.
    pin: Parallelism | None = None
    forced: bool = False


SelectorEvent = SelectorObserved | SelectorProfiled | SelectorPinned
