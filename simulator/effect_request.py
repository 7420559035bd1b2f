"""The request of an effect and its result, without loading the simulator.

The web process asks and must start fast; `simulator.effect` plays in another process.
"""

from __future__ import annotations

import msgspec

from domain.events import Event
from domain.inventory import ResourceInventory
from simulator.request import Variant


class EffectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is played."""

    now: Variant
    then: Variant
    machines: dict[str, dict[str, ResourceInventory]] = {}
    #: Journal time at which the window begins, and its length.
    counts_from: float | None = None
    seconds: float
    used: dict[str, tuple[int, ...]] = {}
    #: Events of what is so already and of the verb; they happen where the window begins.
    events_now: list[Event] = []
    events_then: list[Event] = []
    #: ``project/task`` and actions that the verb ends.
    without_task: str = ""
    without_actions: frozenset[str] = frozenset()


class EffectSide(msgspec.Struct, frozen=True):
    """One run: seconds over the actions that ended in both, and counts."""

    act_mean: float
    act_p95: float
    queue_mean: float
    #: Submitted and not granted where the window ends.
    waiting: int
    #: Actions that would never end.
    never: int


class EffectResult(msgspec.Struct, frozen=True):
    """What a verb would have changed."""

    #: Actions of the window, and those among them that ended in both runs.
    actions: int
    compared: int
    now: EffectSide
    then: EffectSide
    #: Mean ACT of the actions that had ended, measured and simulated as it is; None without one.
    measured_mean: float | None
    simulated_mean: float | None
    #: Longest wait that was measured or simulated as it is, in seconds.
    longest_queue: float


class EffectAnswer(msgspec.Struct, frozen=True):
    """The result, or what is wrong with the question."""

    result: EffectResult | None = None
    problem: str = ""
