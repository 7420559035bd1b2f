"""Residency policy: the interface between scheduling and what stays on units between actions.

Units whose ledger is a `HostingLedger` keep *residents* in memory when an action ends: a loaded model,
a warm browser. Then it matters which action gets which units, since moving a resident (a *restore*)
takes time. All of that is decided behind `ResidencyPolicy`; the other modules of the core see needs,
amounts and places.

Rules
1. Questions (`rank`, `seat`, `halted`, `held_back`, `chooses_places`, `places`, `choices`) change nothing.
2. A policy reorders and delays; it never grants units that do not fit, and a delay ends without
   an event from outside.
3. What it remembers is `ResidencyMemory`, and what its ledgers remember: both are in the snapshot.

Its defaults suit units that keep nothing. Another kind of resident is a subclass, entered in
`registry` together with the handlers of its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from domain.action import Action
from domain.allocation import Allocation, Home
from domain.decisions import Decision
from domain.events import ActionFinished, ChunkReport
from domain.ids import ResourceId
from domain.inventory import Config, NodeInventory
from domain.resources import UnitSet
from domain.rollouts import Rollout, RolloutResult
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.protocol import Policy
from scheduler.core.residency.selectors import Selectors
from scheduler.core.residency.steady_memory import SteadyCount as SteadyCount
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.queues import WaitQueue, WaitReason
from scheduler.core.state.supply import Supply

#: (-priority, class, arrival): heads of queues are examined in this order.
Rank = tuple[float, ...]
#: Class of heads that no rule of residency prefers.
NO_PREFERENCE: Final = 2


class ResidentSeat(NamedTuple):
    """Room for one more action on units that others hold, beside the same resident."""

    node: str
    resource: ResourceId
    home: Home
    #: Actions that may share the units.
    most: int


class RestoreTimes(NamedTuple):
    """Measured seconds of one resident; the defaults hold until it was measured."""

    restore_seconds: float = 1.0
    call_seconds: float = 1.0
    #: Restores by the milli-units that they went to, rising.
    by_count: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class ResidencyMemory:
    """What a policy remembers between cycles."""

    #: By name of the resident.
    times: dict[str, RestoreTimes] = field(default_factory=dict)
    #: Residents that were prefetched, and of which no action was granted since.
    prefetched: set[str] = field(default_factory=set)
    #: By pool: the count that all its elastic calls get.
    steady: dict[str, SteadyCount] = field(default_factory=dict)
    #: What steers the counts of units that calls may have.
    selectors: Selectors = field(default_factory=Selectors)


class ResidencyPolicy:
    """How residents change admission, places and grants. The defaults: not at all."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self.memory = ResidencyMemory()

    def needs(self, needs: Needs, action: Action, policy: Policy) -> Needs:
        """Return ``needs`` with the resident that ``action`` uses and the memory that it takes."""
        return needs

    def count_of(self, action: Action, pool: str, counts: UnitSet) -> int | None:
        """Return which of ``counts`` of its key resource ``action`` gets; None: the policy of the pool decides."""
        return None

    def head_start(self, live: LiveAction) -> float:
        """Return how many arrivals earlier than it arrived ``live``, a new action, is served; below 0: later."""
        return 0.0

    def begin_cycle(self) -> None:
        """Prepare for the scans of one cycle."""

    def rank(self, key: QueueKey, live: LiveAction) -> Rank:
        """Return the rank of ``live``, the head of the queue ``key``."""
        return live.order[0], NO_PREFERENCE, *live.served

    def seat(self, key: QueueKey, live: LiveAction) -> ResidentSeat | None:
        """Return where ``live``, of the queue ``key``, may share units now."""
        return None

    def halted(self, key: QueueKey) -> WaitReason | None:
        """Return why no action of a queue may start, if so."""
        return None

    def held_back(self, queue: WaitQueue) -> WaitReason | None:
        """Return why the head of ``queue`` waits although units are free, without blocking others."""
        return None

    def chooses_places(self, key: QueueKey) -> bool:
        """Return whether `places` says where actions of the queue ``key`` run; else on the least loaded node."""
        return False

    def places(
        self, key: QueueKey, nodes: list[LiveNode], live: LiveAction | None
    ) -> list[LiveNode]:
        """Return those of ``nodes`` on which actions of the queue ``key`` may run, best first.

        ``nodes`` come least loaded first; ``live`` is its head, where the place depends on it.
        """
        return nodes

    def scan_again(self) -> bool:
        """Return whether grants since the last call may let more actions of the same cycle start."""
        return False

    def end_cycle(self, decisions: list[Decision]) -> None:
        """Append what nodes shall prepare for actions that still wait."""

    def choices(
        self, resource: ResourceId, lives: Sequence[LiveAction], choices: Sequence[Choices]
    ) -> list[Choices]:
        """Return the ``choices`` of ``lives`` on ``resource``, with the time that restores take."""
        return list(choices)

    def reserve(
        self,
        action: Action,
        holder: str,
        resource: ResourceId,
        amount: int,
        beside: Sequence[int] = (),
    ) -> None:
        """Allocate the best units for ``action`` until the reservation is released.

        The amounts ``beside`` must still fit afterwards.
        """
        self.supply.resident[resource].allocate(holder, amount)

    def on_grant(self, live: LiveAction, resource: ResourceId, amount: int) -> Allocation:
        """Allocate ``amount`` of ``resource`` to ``live``; the caller has checked that it fits."""
        return self.supply.resident[resource].host(live.holder, amount)

    def join(self, live: LiveAction, seat: ResidentSeat) -> Allocation:
        """Let ``live`` share the units of ``seat``."""
        return self.supply.resident[seat.resource].join(live.holder, seat.home, seat.most)

    def on_finished(self, event: ActionFinished) -> None:
        """Learn from the end of an action, while it still holds its units."""

    def on_report(self, node: str, report: ChunkReport) -> None:
        """Follow what ``node`` reports about the memory of its units."""

    def on_node_joined(self, inventory: NodeInventory, decisions: list[Decision]) -> None:
        """Follow what a node that (re)joined has in memory, and append what it shall prepare."""

    def on_config(self, before: Config, decisions: list[Decision]) -> None:
        """Follow a configuration that replaces ``before``."""

    def load(self) -> None:
        """Follow the configuration of a new state."""

    def on_submitted(
        self, action: Action, pool: str, decisions: list[Decision]
    ) -> tuple[Action, UnitSet]:
        """Return a new ``action`` with the counts that it may have, and those that it asked for where they are others."""
        return action, ()

    def on_requeued(self, live: LiveAction) -> None:
        """Give ``live``, which is about to be queued again, the counts that it may have now."""

    def on_usage(self, live: LiveAction, event: ActionFinished) -> None:
        """Follow the tokens that a call took."""

    def on_rollout(self, rollout: Rollout, decisions: list[Decision]) -> None:
        """Follow a rollout that was accepted."""

    def on_rollout_ended(self, rollout: Rollout, result: RolloutResult) -> None:
        """Follow the end of a rollout."""

    def on_nodes_changed(self) -> None:
        """Give waiting actions the counts that they may have, as a node joined or was removed."""
