"""A scenario with rollouts, their workers and backends, and an observer that keeps its own books."""

from __future__ import annotations

from collections import Counter
from typing import Any

from domain import events, rollout_events
from domain.backends import LlmBackend
from domain.decisions import AssignRollout, Decision, FinishRollout, SetBackends, WithdrawRollout
from domain.rollouts import (
    Rollout,
    RolloutId,
    RolloutOutcome,
    RolloutProgress,
    RolloutResult,
    RolloutState,
    Stage,
)
from scheduler.core.state.rollouts import LiveRollout
from tests.builders import only
from tests.scenario import Scenario


def rollout_id(number: int) -> RolloutId:
    """Return the id of the ``number``-th rollout of a test."""
    return RolloutId(f"rol_{number:028x}")


def a_rollout(number: int = 1, **fields: Any) -> Rollout:
    """Return a rollout of the default project."""
    fields.setdefault("project", "default")
    fields.setdefault("task", "task")
    fields.setdefault("handler", "math")
    return Rollout(id=rollout_id(number), **fields)


def a_backend(name: str = "b1", seats: int = 4, **fields: Any) -> LlmBackend:
    """Return a backend as a request declares it."""
    return LlmBackend(name=name, address=f"http://{name}:8000", seats=seats, **fields)


class RolloutScenario(Scenario):
    """A scenario that checks every assignment against what the workers have."""

    def __init__(self, *nodes: Any, **fields: Any) -> None:
        super().__init__(*nodes, **fields)
        #: (worker, incarnation) → rollout → attempt, as the workers see it.
        self.running: dict[tuple[str, int], dict[RolloutId, int]] = {}
        self.slots: dict[tuple[str, int], int] = {}
        self.handlers: dict[tuple[str, int], tuple[str, ...]] = {}
        self.ends: Counter[RolloutId] = Counter()
        #: Rollouts that the present batch may end.
        self.ended_now: set[RolloutId] = set()
        self.attempts: Counter[RolloutId] = Counter()
        #: Journal time of each end.
        self.ended_at: dict[RolloutId, float] = {}

    def handle(self, *batch: events.Event) -> list[Decision]:
        self.ended_now = {name for event in batch if (name := self._see(event)) is not None}
        decisions = super().handle(*batch)
        for decision in decisions:
            self._judge(decision)
        return decisions

    def _see(self, event: events.Event) -> RolloutId | None:
        """Note what happens outside of the core; return the rollout that an event may end."""
        if isinstance(event, rollout_events.RolloutWorkerJoined):
            key = event.worker, event.incarnation
            self.slots[key] = event.slots
            self.handlers[key] = event.handlers
            self.running.setdefault(key, {})
        elif isinstance(event, rollout_events.RolloutFinished):
            for (worker, _), mine in self.running.items():
                if worker == event.worker and mine.get(event.rollout_id) == event.attempt:
                    del mine[event.rollout_id]
                    return event.rollout_id
        elif isinstance(event, rollout_events.RolloutCancelRequested):
            return event.rollout_id
        return None

    def _judge(self, decision: Decision) -> None:
        if isinstance(decision, AssignRollout):
            name, key = decision.rollout.id, (decision.worker, decision.incarnation)
            assert not self.ends[name], "assigned after its end"
            handlers = self.handlers[key]
            assert not handlers or decision.rollout.handler in handlers, "its worker cannot run it"
            assert not any(name in mine for mine in self.running.values()), "assigned twice"
            assert decision.attempt > self.attempts[name], "an attempt was used twice"
            self.attempts[name] = decision.attempt
            self.running[key][name] = decision.attempt
            assert len(self.running[key]) <= self.slots[key], "more rollouts than slots"
        elif isinstance(decision, WithdrawRollout):
            mine = self.running[decision.worker, decision.incarnation]
            assert mine.pop(decision.rollout_id) == decision.attempt
        elif isinstance(decision, FinishRollout):
            self.ends[decision.rollout_id] += 1
            self.ended_at[decision.rollout_id] = self.now
            assert self.ends[decision.rollout_id] == 1, "ended twice"
            outcome = decision.result.outcome
            if outcome not in (RolloutOutcome.INFRA_FAILED, RolloutOutcome.CANCELLED):
                assert decision.rollout_id in self.ended_now, "ended by an earlier attempt"
            completed = outcome is RolloutOutcome.COMPLETED
            assert decision.result.reward is None or completed, "I2"

    # What the gateway sends

    def submit_rollouts(self, *rollouts: Rollout, **fields: Any) -> list[Decision]:
        return self.handle(rollout_events.RolloutsSubmitted(rollouts=rollouts, **fields))

    def cancel_rollout(self, number: int, project: str = "default") -> list[Decision]:
        return self.handle(
            rollout_events.RolloutCancelRequested(rollout_id=rollout_id(number), project=project)
        )

    def park(self, number: int) -> list[Decision]:
        return self.handle(
            rollout_events.RolloutParkRequested(rollout_id=rollout_id(number), project="default")
        )

    def resume(self, number: int) -> list[Decision]:
        return self.handle(
            rollout_events.RolloutResumeRequested(rollout_id=rollout_id(number), project="default")
        )

    def change_backends(self, *put: LlmBackend, **fields: Any) -> list[Decision]:
        fields.setdefault("pool", "policy")
        return self.handle(rollout_events.BackendsChanged(put=put, **fields))

    # What workers report

    def join_worker(
        self, name: str = "w1", slots: int = 4, incarnation: int = 1, **fields: Any
    ) -> list[Decision]:
        return self.handle(
            rollout_events.RolloutWorkerJoined(
                worker=name, incarnation=incarnation, slots=slots, **fields
            )
        )

    def lose_worker(self, name: str = "w1", incarnation: int = 1) -> list[Decision]:
        return self.handle(rollout_events.RolloutWorkerLost(worker=name, incarnation=incarnation))

    def report_end(
        self,
        number: int,
        outcome: RolloutOutcome = RolloutOutcome.COMPLETED,
        *,
        worker: str | None = None,
        attempt: int | None = None,
        **fields: Any,
    ) -> list[Decision]:
        live = self.machine.state.rollouts.live.get(rollout_id(number))
        if worker is None or attempt is None:
            assert live is not None
            worker, attempt = live.worker, live.attempt
        return self.handle(
            rollout_events.RolloutFinished(
                rollout_id=rollout_id(number),
                worker=worker,
                attempt=attempt,
                result=RolloutResult(outcome, **fields),
            )
        )

    def progress(self, number: int, turns: int) -> list[Decision]:
        live = self.the_rollout(number)
        report = rollout_events.ProgressReport(
            live.id, live.attempt, RolloutProgress(Stage.RUN, turns=turns)
        )
        return self.handle(rollout_events.RolloutsProgressed(worker=live.worker, reports=(report,)))

    # What one can see

    def the_rollout(self, number: int) -> LiveRollout:
        return self.machine.state.rollouts.live[rollout_id(number)]

    def rollout_state(self, number: int) -> RolloutState:
        live = self.machine.state.rollouts.live.get(rollout_id(number))
        return RolloutState.FINISHED if live is None else live.state

    def end_of(self, number: int) -> FinishRollout:
        """Return the one end of a rollout."""
        ends = only(FinishRollout, self.decisions)
        (end,) = [each for each in ends if each.rollout_id == rollout_id(number)]
        return end


def assigned(decisions: list[Decision]) -> list[tuple[int, str, int]]:
    """Return (number of the rollout, worker, attempt) of each assignment."""
    return [
        (int(each.rollout.id[4:], 16), each.worker, each.attempt)
        for each in only(AssignRollout, decisions)
    ]


def the_backends(decisions: list[Decision]) -> list[tuple[str, int, int]]:
    """Return (name, number, weights version) of each backend of the one `SetBackends`."""
    (found,) = only(SetBackends, decisions)
    return [(each.name, each.number, each.weights_version) for each in found.backends.backends]
