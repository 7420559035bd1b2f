"""Any history of rollouts, workers and backends leaves a consistent machine, and each rollout one end."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain import events, rollout_events
from domain.backends import Balance
from domain.decisions import Decision, ForkEnvironment, RemoveEnvironment
from domain.rollouts import RolloutOutcome, RolloutState
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.rollouts import REMEMBERED_SECONDS
from tests.builders import a_config, a_lease, a_node, an_action, make_ledger, only
from tests.tiers import by_tier
from tests.unit.core.rollout_scenario import (
    RolloutScenario,
    a_backend,
    a_rollout,
    rollout_id,
)

WORKERS = st.sampled_from(["w1", "w2", "w3"])
NUMBERS = st.integers(1, 9)
OUTCOMES = st.sampled_from(RolloutOutcome)
BACKENDS = st.sampled_from(["b1", "b2", "b3"])


class RolloutHistories(RuleBasedStateMachine):
    """Trainers, rollout workers, backends and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = RolloutScenario(a_node("n1", cpus=3), config=a_config(apis={"stage": 2}))
        self.twin: Machine | None = None
        self.history: list[tuple[list[events.Event], list[Decision]]] = []
        self.incarnations = {"w1": 1, "w2": 1, "w3": 1}
        self.leases = 0
        self.submitted: set[int] = set()
        handle = self.world.handle

        def recording(*batch: events.Event) -> list[Decision]:
            decisions = handle(*batch)
            self.history.append((list(batch), decisions))
            if self.twin is not None:
                assert self.twin.handle(*batch) == decisions
            for order in only(ForkEnvironment, decisions):
                self.world.forked(order)
            for removal in only(RemoveEnvironment, decisions):
                self.world.remove_environment(removal.trajectory.partition("/")[2])
            return decisions

        self.world.handle = recording  # type: ignore[method-assign]

    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=4),
        priority=st.integers(-1, 1),
        llm=st.booleans(),
    )
    def submit(self, numbers: list[int], priority: int, llm: bool) -> None:
        ended, now = self.world.ended_at, self.world.now
        numbers = [n for n in numbers if now - ended.get(rollout_id(n), now) < REMEMBERED_SECONDS]
        self.submitted.update(numbers)
        llm_pool = "policy" if llm else ""
        self.world.submit_rollouts(
            *(a_rollout(n, priority=priority, llm=llm_pool) for n in numbers)
        )

    @rule(number=NUMBERS)
    def cancel(self, number: int) -> None:
        self.world.cancel_rollout(number)

    @rule(number=NUMBERS, resume=st.booleans())
    def park_or_resume(self, number: int, resume: bool) -> None:
        (self.world.resume if resume else self.world.park)(number)

    @rule(worker=WORKERS, slots=st.integers(0, 3), restarted=st.booleans())
    def join(self, worker: str, slots: int, restarted: bool) -> None:
        self.incarnations[worker] += restarted
        self.world.join_worker(worker, slots, self.incarnations[worker])

    @rule(worker=WORKERS, late=st.booleans())
    def lose(self, worker: str, late: bool) -> None:
        self.world.lose_worker(worker, self.incarnations[worker] - late)

    @rule(data=st.data(), outcome=OUTCOMES, reward=st.sampled_from([None, 0.0, 1.0, float("nan")]))
    def report(self, data: st.DataObject, outcome: RolloutOutcome, reward: float | None) -> None:
        number, worker = data.draw(NUMBERS), data.draw(WORKERS)
        live = self.world.machine.state.rollouts.live.get(rollout_id(number))
        if live is not None and live.worker and data.draw(st.booleans()):
            worker, attempt = live.worker, live.attempt
        else:
            attempt = data.draw(st.integers(1, 3))
        self.world.report_end(number, outcome, worker=worker, attempt=attempt, reward=reward)

    @rule(
        number=NUMBERS, suffix=st.sampled_from(["", "-run", "-eval", ".2", "x"]), seat=st.booleans()
    )
    def act(self, number: int, suffix: str, seat: bool) -> None:
        self.leases += 1
        trajectory = f"{rollout_id(number)}{suffix}"
        cost = {"api:stage": 1} | ({"llm:policy": 1} if seat else {})
        self.world.submit(
            a_lease(f"l{self.leases:03}", cost=cost, trajectory=trajectory),
            an_action(f"x{self.leases:03}", trajectory=trajectory),
        )

    @rule(data=st.data())
    def end_action(self, data: st.DataObject) -> None:
        running = sorted(self.world.holding())
        if running:
            name = data.draw(st.sampled_from(running))
            if name.startswith("l"):
                self.world.release(name)
            else:
                self.world.finish(name)

    @rule(number=NUMBERS)
    def fork(self, number: int) -> None:
        name = rollout_id(number)
        if self.world.has_trajectory(name):
            self.world.fork(name, f"{name}-run", request_id=f"f{len(self.history)}")

    @rule(
        put=st.lists(BACKENDS, max_size=2, unique=True),
        seats=st.integers(1, 3),
        removed=st.lists(BACKENDS, max_size=1),
        clear=st.booleans(),
        drained=st.booleans(),
        balance=st.sampled_from([None, *Balance]),
    )
    def change_backends(
        self,
        put: list[str],
        seats: int,
        removed: list[str],
        clear: bool,
        drained: bool,
        balance: Balance | None,
    ) -> None:
        self.world.change_backends(
            *(a_backend(name, seats, drained=drained) for name in put),
            removed=tuple(removed),
            clear=clear and not put,
            balance=balance,
        )

    @rule(backend=BACKENDS, unhealthy=st.sampled_from(["", "it does not answer"]))
    def judge(self, backend: str, unhealthy: str) -> None:
        self.world.handle(
            rollout_events.BackendJudged(pool="policy", backend=backend, unhealthy=unhealthy)
        )

    @rule(seconds=st.sampled_from([1.0, 40.0, 400.0]))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(go_on_with_it=st.booleans())
    def restore(self, go_on_with_it: bool) -> None:
        restored = snapshot.load(snapshot.dump(self.world.machine), make_ledger)
        if go_on_with_it:
            self.world.machine = restored
            self.world.check()
        else:
            self.twin = restored

    @precondition(lambda self: self.submitted)
    @rule()
    def no_rollout_is_lost(self) -> None:
        live = self.world.machine.state.rollouts.live
        for number in self.submitted:
            assert rollout_id(number) in live or self.world.ends[rollout_id(number)]

    def teardown(self) -> None:
        self.world.join_worker("w4", slots=100)
        for number in self.submitted:
            self.world.resume(number)
        for number in self.submitted:
            if self.world.rollout_state(number) is RolloutState.ASSIGNED:
                self.world.report_end(number)
        assert not self.world.machine.state.rollouts.live
        assert all(self.world.ends[rollout_id(number)] for number in self.submitted)
        machine = Machine(make_ledger, a_config(apis={"stage": 2}))
        machine.handle(events.NodeJoined(node=a_node("n1", cpus=3), at=1000.0))
        for batch, decisions in self.history:
            assert machine.handle(*batch) == decisions


TRIED = settings(
    max_examples=by_tier(15, 60, 600),
    stateful_step_count=by_tier(40, 40, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu_seconds(4)
@pytest.mark.timeout(1800)
def test_any_history_of_rollouts_keeps_every_promise() -> None:
    run_state_machine_as_test(RolloutHistories, settings=TRIED)
