"""Residency registry: policies by the kind of their units, and the handlers of their events.

Another kind of resident is a subclass of `ResidencyPolicy` with an entry in `POLICIES`, and one in
`HANDLERS` for each event of its own. Its ledger is a `HostingLedger`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from domain import events, selector_events
from domain.action import Action
from domain.allocation import Allocation
from domain.decisions import Decision
from domain.events import ActionFinished, ChunkReport
from domain.ids import ResourceId
from domain.inventory import Config, NodeInventory
from domain.resources import UnitSet
from domain.rollouts import Rollout, RolloutResult
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.protocol import Policy
from scheduler.core.residency import selector_handlers, services
from scheduler.core.residency.policy import Rank, ResidencyPolicy, ResidentSeat
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue, WaitReason

MakeResidency = Callable[[State], ResidencyPolicy]

#: By kind of resource (``gpu``).
POLICIES: Final[dict[str, MakeResidency]] = {KIND: services.ServiceResidency}

HANDLERS: Final[dict[type, Callable[[State, Any, list[Decision]], None]]] = {
    events.ServiceEvictionAsked: services.eviction_asked,
    events.ServicePrepared: services.prepared,
    selector_events.SelectorObserved: selector_handlers.observed,
    selector_events.SelectorProfiled: selector_handlers.profiled,
    selector_events.SelectorPinned: selector_handlers.pinned,
}


def make_residency(
    state: State, policies: Mapping[str, MakeResidency] | None = None
) -> ResidencyPolicy:
    """Return the residency policy of ``state``; ``policies`` replaces `POLICIES`."""
    made = {kind: make(state) for kind, make in (policies or POLICIES).items()}
    if len(made) == 1:
        return next(iter(made.values()))
    return ResidencyByKind(state, made)


class ResidencyByKind(ResidencyPolicy):
    """Several residency policies: the kind of the key resource, or of the units, selects one."""

    def __init__(self, state: State, policies: Mapping[str, ResidencyPolicy]) -> None:
        super().__init__(state.supply)
        self._policies = policies
        self._neutral = ResidencyPolicy(state.supply)

    def _of(self, kind: str) -> ResidencyPolicy:
        return self._policies.get(kind, self._neutral)

    def _at(self, resource: ResourceId) -> ResidencyPolicy:
        return self._of(resource.partition(":")[0])

    def needs(self, needs: Needs, action: Action, policy: Policy) -> Needs:
        return self._of(needs.key).needs(needs, action, policy)

    def count_of(self, action: Action, pool: str, counts: UnitSet) -> int | None:
        found = (each.count_of(action, pool, counts) for each in self._policies.values())
        return next((each for each in found if each is not None), None)

    def head_start(self, live: LiveAction) -> float:
        return self._of(live.needs.key).head_start(live)

    def begin_cycle(self) -> None:
        for each in self._policies.values():
            each.begin_cycle()

    def rank(self, key: QueueKey, live: LiveAction) -> Rank:
        return self._of(key.needs.key).rank(key, live)

    def seat(self, key: QueueKey, live: LiveAction) -> ResidentSeat | None:
        return self._of(key.needs.key).seat(key, live)

    def halted(self, key: QueueKey) -> WaitReason | None:
        return self._of(key.needs.key).halted(key)

    def held_back(self, queue: WaitQueue) -> WaitReason | None:
        return self._of(queue.key.needs.key).held_back(queue)

    def chooses_places(self, key: QueueKey) -> bool:
        return self._of(key.needs.key).chooses_places(key)

    def places(
        self, key: QueueKey, nodes: list[LiveNode], live: LiveAction | None
    ) -> list[LiveNode]:
        return self._of(key.needs.key).places(key, nodes, live)

    def scan_again(self) -> bool:
        again = [each.scan_again() for each in self._policies.values()]  # each forgets its grants
        return any(again)

    def end_cycle(self, decisions: list[Decision]) -> None:
        for each in self._policies.values():
            each.end_cycle(decisions)

    def choices(
        self, resource: ResourceId, lives: Sequence[LiveAction], choices: Sequence[Choices]
    ) -> list[Choices]:
        return self._at(resource).choices(resource, lives, choices)

    def reserve(
        self,
        action: Action,
        holder: str,
        resource: ResourceId,
        amount: int,
        beside: Sequence[int] = (),
    ) -> None:
        self._at(resource).reserve(action, holder, resource, amount, beside)

    def on_grant(self, live: LiveAction, resource: ResourceId, amount: int) -> Allocation:
        return self._at(resource).on_grant(live, resource, amount)

    def join(self, live: LiveAction, seat: ResidentSeat) -> Allocation:
        return self._at(seat.resource).join(live, seat)

    def on_finished(self, event: ActionFinished) -> None:
        for each in self._policies.values():
            each.on_finished(event)

    def on_report(self, node: str, report: ChunkReport) -> None:
        for each in self._policies.values():
            each.on_report(node, report)

    def on_node_joined(self, inventory: NodeInventory, decisions: list[Decision]) -> None:
        for each in self._policies.values():
            each.on_node_joined(inventory, decisions)

    def on_config(self, before: Config, decisions: list[Decision]) -> None:
        for each in self._policies.values():
            each.on_config(before, decisions)

    def load(self) -> None:
        for each in self._policies.values():
            each.load()

    def on_submitted(
        self, action: Action, pool: str, decisions: list[Decision]
    ) -> tuple[Action, UnitSet]:
        asked: UnitSet = ()
        for each in self._policies.values():
            action, narrowed = each.on_submitted(action, pool, decisions)
            asked = asked or narrowed
        return action, asked

    def on_requeued(self, live: LiveAction) -> None:
        for each in self._policies.values():
            each.on_requeued(live)

    def on_usage(self, live: LiveAction, event: ActionFinished) -> None:
        for each in self._policies.values():
            each.on_usage(live, event)

    def on_rollout(self, rollout: Rollout, decisions: list[Decision]) -> None:
        for each in self._policies.values():
            each.on_rollout(rollout, decisions)

    def on_rollout_ended(self, rollout: Rollout, result: RolloutResult) -> None:
        for each in self._policies.values():
            each.on_rollout_ended(rollout, result)

    def on_nodes_changed(self) -> None:
        for each in self._policies.values():
            each.on_nodes_changed()
