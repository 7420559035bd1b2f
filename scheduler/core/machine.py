"""Machine: the interface of the core to the scheduler loop, the simulator and tests."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from domain.advice import PolicyDecision, ShareUsage
from domain.decisions import Decision, Degraded, Wake
from domain.errors import InvariantViolation
from domain.events import Event
from domain.ids import ActionId
from domain.inventory import Config, default_config
from scheduler.core.advice.facts import ActionStatus, QueuesStatus
from scheduler.core.advice.forecast import recent_decisions
from scheduler.core.advice.status import explain, queues_status, share_usage
from scheduler.core.cycle.admission import run_cycle
from scheduler.core.cycle.pool_policies import load_policies
from scheduler.core.handlers import HANDLERS, deadlines
from scheduler.core.handlers.generations import load_fleets, settle
from scheduler.core.handlers.rollouts import assign_waiting
from scheduler.core.residency.registry import make_residency
from scheduler.core.sharing.shares import load_shares
from scheduler.core.state.at_work import AtWork
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import new_state
from scheduler.core.state.moves import begin_moves
from scheduler.core.state.rebalancing import look_later, rebalance
from scheduler.core.state.supply import MakeLedger


class Machine:
    """Events in, decisions out. Not thread-safe; knows no clock."""

    def __init__(self, make_ledger: MakeLedger, config: Config | None = None) -> None:
        self.state = new_state(make_ledger, config or default_config())
        self.state.residency = make_residency(self.state)
        load_policies(self.state)
        load_shares(self.state)
        load_fleets(self.state)
        self.state.residency.load()
        self.state.resizing.changed.clear()
        #: After an exception: the event whose handler raised, or the actions of the cycle that did.
        self.at_work = AtWork()

    def handle(self, *events: Event) -> list[Decision]:
        """Apply a batch of events in order, then run one scheduling cycle.

        Raises InvariantViolation when time runs backward. After any exception the state is half changed,
        and the machine must be discarded.
        """
        state = self.state
        decisions: list[Decision] = []
        timers = state.timers
        at_work = self.at_work
        for event in events:
            at_work.event = event
            at = event.at
            if at < state.now or at >= timers.next_at:
                self._advance(at, decisions)
            state.now = at
            HANDLERS[type(event)](state, event, decisions)
        at_work.event = None
        if state.rollouts.changed:
            assign_waiting(state, decisions)
        if state.generations.changed:
            settle(state, decisions)
        run_cycle(state, decisions, at_work)
        if state.rebalancing.look and rebalance(state, decisions):
            run_cycle(state, decisions, at_work)
        if state.rebalancing.waits:
            look_later(state)
        if state.moves.wanted:
            begin_moves(state, decisions)
        if state.supply.paced:
            self._report_degradations(decisions)
        self._request_wake(decisions)
        return decisions

    def dry_run(self, *events: Event) -> None:
        """Handle ``events`` and scan all queues, to find whether that raises.

        The decisions are not part of the history: discard the machine afterwards.
        """
        self.state.dirty = True
        self.state.queues.deferrals.clear()
        self.handle(*events)

    def explain(self, action_id: ActionId) -> ActionStatus | None:
        """Return the status of a live action and, while it is queued, why it waits; else None."""
        return explain(self.state, action_id)

    def decisions(self, limit: int) -> list[PolicyDecision]:
        """Return the latest decisions of policies, latest first."""
        return recent_decisions(self.state, limit)

    def queues(
        self, limit: int, projects: Collection[str] | None = None, at: float = 0.0
    ) -> QueuesStatus:
        """Return the longest wait queues at ``at``, of some projects or of all; by default at the latest event."""
        return queues_status(self.state, limit, projects, max(at, self.state.now))

    def shares(self) -> list[ShareUsage]:
        """Return the usage of shared resources by project."""
        return share_usage(self.state)

    def live(self, action_id: ActionId) -> LiveAction | None:
        """Return a live action for reading."""
        return self.state.actions.get(action_id)

    def _advance(self, at: float, decisions: list[Decision]) -> None:
        state = self.state
        if at < state.now:
            raise InvariantViolation(f"time runs backward: {at} after {state.now}")
        state.now = at
        while (timer := state.timers.due(at)) is not None:
            deadlines.fire(state, timer, decisions)

    def _report_degradations(self, decisions: list[Decision]) -> None:
        paced = self.state.supply.paced
        found = {name: each for name in paced if (each := paced[name].degradations())}
        # A restored state may hold its ledgers in another order.
        for name in sorted(found):
            decisions += [Degraded(name, each) for each in found[name]]

    def _request_wake(self, decisions: list[Decision]) -> None:
        state, asked = self.state, self.state.timers.asked_wake
        first_at = state.timers.next_at
        if asked is not None and state.now < asked <= first_at < inf and not state.timers.crowded:
            return  # no timer rings before the wake-up that was requested
        upcoming = deadlines.upcoming(state)
        if upcoming is None:
            self.state.timers.asked_wake = None
        elif asked is None or asked <= self.state.now or upcoming < asked:
            self.state.timers.asked_wake = upcoming
            decisions.append(Wake(upcoming))
