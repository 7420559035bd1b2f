"""Whatever happens to a rollout, in any order, it ends with one well-formed result and leaves nothing behind.

The worker loses its memory at any point (a new machine gets the log alone), handler processes end, nodes are lost, limits
pass, actions end unknown, the rollout is parked, resumed and cancelled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.core.calls import interruption, known_call, new_call, observation
from rollout.core.records import StoredCall
from rollout.core.results import Failure
from rollout.core.stage_machine import MAX_EVALUATIONS, MAX_PREPARATIONS, RolloutMachine
from rollout.core.steps import (
    CloseTrajectory,
    Invoke,
    PrepareTrajectory,
    ReleaseLease,
    ReportEnd,
    Store,
    TakeLease,
)
from rollout.ports import Record
from tests.tiers import by_tier
from tests.unit.rollout.builders import ENVIRONMENT, a_request, a_rollout, an_end

#: Calls that the handler makes in each stage.
CALLS = {Stage.INIT: 1, Stage.RUN: 3, Stage.EVAL: 2}


class World:
    """What lasts when a worker does not: log, leases, trajectories, actions, and the scheduler's view."""

    def __init__(self, environment: dict[str, Any] | None) -> None:
        self.rollout = a_rollout()
        self.log: list[Record] = [a_request(environment=environment)]
        self.leases: set[Stage] = set()
        self.trajectories: set[str] = set()
        #: Key → how it ended, None while it runs.
        self.actions: dict[str, str | None] = {}
        #: Environment and number of a call → keys under which its action was submitted.
        self.keys: dict[tuple[object, ...], set[str]] = defaultdict(set)
        self.results: list[RolloutResult] = []
        self.attempt = 1


class RolloutHistories(RuleBasedStateMachine):
    """One rollout in a world of faults."""

    @initialize(environment=st.sampled_from([ENVIRONMENT, None]))
    def accept(self, environment: dict[str, Any] | None) -> None:
        self.world = World(environment)
        self.cancelled = self.parked = False
        self.restart()

    def restart(self) -> None:
        world = self.world
        self.machine = RolloutMachine(world.rollout, world.attempt, world.log)
        #: Number of the call that the handler makes next; None: no handler runs.
        self.call: int | None = None
        self.stored_call: StoredCall | None = None
        self.invoked: Invoke | None = None

    @property
    def over(self) -> bool:
        return bool(self.world.results)

    # What happens

    @precondition(lambda self: not self.over and not self.parked)
    @rule(good=st.booleans(), nonsense=st.sampled_from([math.nan, "much", object(), 10**400]))
    def proceed(self, good: bool, nonsense: object) -> None:
        """One small step forward: of the machine, or of a call of the handler."""
        if self.call is not None:
            self.proceed_in_stage(good, nonsense)
        else:
            step = self.machine.next()
            assert step is not None
            self.take(step)

    @precondition(lambda self: not self.over and not self.parked)
    @rule()
    def worker_dies(self) -> None:
        self.world.attempt += 1
        self.world.leases.clear()  # they expire
        self.restart()

    @precondition(lambda self: self.call is not None)
    @rule(caused=st.booleans())
    def handler_process_ends(self, caused: bool) -> None:
        assert self.invoked is not None
        self.machine.crashed(self.invoked, "signal 9", caused=caused)
        self.stop_handler()

    @precondition(lambda self: self.call is not None)
    @rule()
    def handler_raises(self) -> None:
        assert self.invoked is not None
        self.machine.raised(self.invoked, Failure("ValueError", "no"))
        self.stop_handler()

    @precondition(lambda self: self.call is not None)
    @rule()
    def limit_passes(self) -> None:
        self.machine.timed_out("RUN took longer")
        self.stop_handler()

    @precondition(lambda self: not self.over and bool(self.world.trajectories))
    @rule()
    def node_is_lost(self) -> None:
        """Environments are gone, and what ran in them ends unknown."""
        self.world.trajectories.clear()
        for key, ended in self.world.actions.items():
            if ended is None:
                self.world.actions[key] = "unknown"
        if self.call is not None and self.stored_call is None:
            self.machine.environment_lost("its node is lost")
            self.stop_handler()

    @precondition(lambda self: not self.over)
    @rule()
    def cancel(self) -> None:
        """The scheduler finishes it, and ends what it has."""
        self.end(RolloutResult(RolloutOutcome.CANCELLED, reason="cancelled"))
        self.machine.dropped()
        self.stop_handler()

    @precondition(lambda self: not self.over and not self.parked)
    @rule()
    def park(self) -> None:
        self.parked = True
        self.world.leases.clear()
        self.world.attempt += 1

    @precondition(lambda self: self.parked and not self.over)
    @rule()
    def resume(self) -> None:
        self.parked = False
        self.restart()

    @precondition(lambda self: self.over)
    @rule()
    def nothing_follows_the_end(self) -> None:
        assert self.machine.next() is None

    # Steps

    def take(self, step: object) -> None:
        world, machine = self.world, self.machine
        match step:
            case TakeLease(stage):
                if stage is Stage.EVAL:
                    assert not [name for name in world.trajectories if name.endswith("-run")]
                assert not world.leases
                world.leases.add(stage)
                machine.leased_stage(stage, f"{stage}", 1.0)
            case PrepareTrajectory():
                self.open(step)
            case Invoke() if step.callback.is_stage:
                assert machine.leased is step.stage
                self.invoked, self.call, self.stored_call = step, 0, None
            case Invoke():
                machine.returned(step, {"note": 1})
            case Store(number, record):
                assert number == len(world.log)
                world.log.append(record)
                machine.stored(record)
            case CloseTrajectory(name):
                world.trajectories.discard(name)
                machine.closed(name)
            case ReleaseLease(stage):
                world.leases.discard(stage)
                machine.released()
            case ReportEnd(result):
                self.end(result)
                machine.reported()

    def end(self, result: RolloutResult) -> None:
        self.world.results.append(result)
        self.world.trajectories.clear()
        if result.outcome is RolloutOutcome.CANCELLED:
            self.world.leases.clear()

    def open(self, step: PrepareTrajectory) -> None:
        if step.source and step.source not in self.world.trajectories:
            self.machine.environment_lost("its source is lost")
        else:
            self.world.trajectories.add(step.name)
            self.machine.opened(step.name)

    def proceed_in_stage(self, good: bool, nonsense: object) -> None:
        """Store a call, submit it, end its action, store the observation; or end the stage."""
        machine, stage = self.machine, self.machine.stage
        assert self.call is not None
        assert self.invoked is not None
        if self.call >= CALLS[stage]:
            answers = {Stage.INIT: None, Stage.RUN: {"patch": "x"}, Stage.EVAL: 0.5}
            self.machine.returned(self.invoked, answers[stage] if good else nonsense)
            self.stop_handler()
            return
        members = {"kind": "exec", "exec": {"command": ["true"]}}
        name = str(self.call)
        call = self.stored_call or known_call(machine, name, members)
        if call is None:
            self.store(new_call(machine, name, members, 60.0))
            self.stored_call = known_call(machine, name, members)
        elif call.end is not None:
            self.call, self.stored_call = self.call + 1, None
        else:
            self.stored_call = call
            self.proceed_with_action(call, good)

    def proceed_with_action(self, call: StoredCall, good: bool) -> None:
        world, machine = self.world, self.machine
        opened = machine.facts.request.environment is not None and machine.stage is not Stage.EVAL
        if call.key not in world.actions and opened and call.trajectory not in world.trajectories:
            machine.environment_lost("its node is lost")
            self.stop_handler()
        elif call.key not in world.actions:
            world.actions[call.key] = None
            facts = machine.facts
            again = facts.evaluation if machine.stage is Stage.EVAL else 0
            place = (facts.generation, again, machine.stage, self.call)
            world.keys[place].add(call.key)
        elif world.actions[call.key] is None:
            world.actions[call.key] = "completed" if good else "timeout"
        else:
            end = an_end(world.actions[call.key] or "")
            if (how := interruption(machine, call, end)) is not None:
                how()
                self.stop_handler()
            else:
                self.store(observation(machine, call.key, end))

    def store(self, record: Record) -> None:
        self.world.log.append(record)
        self.machine.stored(record)

    def stop_handler(self) -> None:
        self.call = self.stored_call = self.invoked = None

    # What must hold

    @invariant()
    def no_tool_runs_under_two_keys(self) -> None:
        if hasattr(self, "world"):
            assert all(len(keys) == 1 for keys in self.world.keys.values())

    @invariant()
    def at_most_one_result(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.results) <= 1
            assert sum(record.kind == "result" for record in self.world.log) <= 1

    @invariant()
    def a_run_that_has_ended_is_never_repeated(self) -> None:
        if hasattr(self, "world"):
            kinds = [record.kind for record in self.world.log]
            assert kinds.count("stage") <= 1
            assert "stage" not in kinds or "lost" not in kinds[kinds.index("stage") :]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        if self.parked and not self.over:
            self.resume()
        for _ in range(500):
            if self.over:
                break
            self.proceed(True, None)
        [result] = self.world.results
        assert result.reason or result.reward is not None
        assert (result.reward is None) or result.outcome is RolloutOutcome.COMPLETED
        assert result.reward is None or math.isfinite(result.reward)
        assert self.world.leases == set()
        if result.outcome is RolloutOutcome.COMPLETED:
            facts = self.machine.facts
            ran = {(stage, call) for (_, _, stage, call), keys in self.world.keys.items() if keys}
            for stage, calls in CALLS.items():
                for number in range(calls):
                    assert (stage, number) in ran, "a tool was not run"
                    last = (facts.generation, facts.evaluation, stage, number)
                    assert stage is not Stage.EVAL or self.world.keys[last]
        assert self.machine.facts.generation < MAX_PREPARATIONS
        assert self.machine.facts.evaluation < MAX_EVALUATIONS
        assert self.machine.next() is None


TestRolloutHistories = RolloutHistories.TestCase
TestRolloutHistories.settings = settings(
    max_examples=by_tier(25, 150, 1500), stateful_step_count=by_tier(40, 60, 120), deadline=None
)
