"""Any history around moves of environments: an environment is somewhere at every instant, once, and no action runs in the middle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain import events
from domain.action import Outcome
from domain.decisions import EndMove, Forget, MoveEnvironment, ReceiveEnvironment
from domain.inventory import PoolConfig
from scheduler.core.state.model import FIRST_SECONDS
from tests.builders import GIB, a_config, a_node, an_action, only
from tests.tiers import by_tier
from tests.unit.core.watched import Watched

NAMES = ("n1", "n2", "n3")
NODES = st.sampled_from(NAMES)
TRAJECTORIES = st.sampled_from(["t1", "t2"])
CPUS = st.sampled_from([1, 1, 2])
MEMORY = st.sampled_from([0, GIB, GIB, 2 * GIB])
FAILED = st.sampled_from(["", "the disk is full"])


class MoveHistories(RuleBasedStateMachine):
    """Few trajectories on three nodes, two of them smaller, which are drained, lost and restarted in any order."""

    #: What was reached over all histories: a rule that never applies would check nothing.
    reached: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = Watched()
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.identities = dict.fromkeys(NAMES, 0)
        self.revision = 0
        self.configure(set(), allowed=True)
        self.forks = 0
        self.reports: list[tuple[Any, Any]] = []
        self.join("n1", new_disk=False, moves=True)
        for trajectory in ("t1", "t2"):
            self.submit(trajectory, GIB, safe=False)
        self.report_all(Outcome.COMPLETED)
        for name in ("n2", "n3"):
            self.join(name, new_disk=False, moves=True)
        self.begin()

    def begin(self) -> None:
        """Let both trajectories leave their node."""
        self.drain({"n1"}, allowed=True)

    @rule(trajectory=TRAJECTORIES, memory=MEMORY, safe=st.booleans(), cpus=CPUS)
    def submit(self, trajectory: str, memory: int, safe: bool, cpus: int = 1) -> None:
        name = f"a{len(self.world.submitted):04d}"
        action = an_action(
            name, trajectory=trajectory, memory_bytes=memory, replay_safe=safe, cost={"cpu": cpus}
        )
        self.world.submit(action)

    @precondition(lambda self: self.world.packing or self.world.receiving)
    @rule()
    def submit_in_the_middle(self) -> None:
        orders: list[MoveEnvironment | ReceiveEnvironment] = [
            *self.world.packing.values(), *self.world.receiving.values(),
        ]  # fmt: skip
        order = orders[0]
        self.submit(order.trajectory.partition("/")[2], 0, safe=False, cpus=2)

    @precondition(lambda self: self.world.running())
    @rule(outcome=st.sampled_from([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.INFRA_FAILED]))
    def report_all(self, outcome: Outcome) -> None:
        self.world.handle(
            *(
                self.world.report(name, outcome, node=node, attempt=attempt)
                for node, (name, attempt) in self.world.running()
            )
        )

    @rule(trajectory=TRAJECTORIES)
    def finish_trajectory(self, trajectory: str) -> None:
        self.world.finish_trajectory(trajectory)

    @rule(nodes=st.sets(NODES, max_size=2), allowed=st.sampled_from([True, True, True, False]))
    def drain(self, nodes: set[str], allowed: bool) -> None:
        self.configure(nodes, allowed=allowed)

    def configure(self, nodes: set[str], *, allowed: bool) -> None:
        self.revision += 1
        pool = PoolConfig(
            "default",
            "paper",
            move_environments=allowed,
            rebalance_environments=True,
            move_to_smaller=True,
        )
        self.world.configure(
            a_config(
                pools=[pool],
                drained_nodes=frozenset(nodes),
                finishing_nodes=frozenset(nodes),
                node_grace_seconds=10.0,
                node_dead_seconds=60.0,
                revision=self.revision,
            )
        )

    @precondition(lambda self: self.world.packing)
    @rule(data=st.data(), failed=FAILED)
    def pack(self, data: st.DataObject, failed: str) -> None:
        self._pack(data.draw(st.sampled_from(list(self.world.packing.values()))), failed)

    def _pack(self, order: MoveEnvironment, failed: str = "") -> None:
        self.reports.append((self.world.packed, order))
        decisions = self.world.packed(order, failed)
        if only(ReceiveEnvironment, decisions):
            self.reached["packed for an action" if order.most_bytes else "packed"] += 1
        self._note_ends(decisions)

    @precondition(lambda self: self.world.receiving)
    @rule(data=st.data(), failed=FAILED)
    def receive(self, data: st.DataObject, failed: str) -> None:
        self._receive(data.draw(st.sampled_from(list(self.world.receiving.values()))), failed)

    def _receive(self, order: ReceiveEnvironment, failed: str = "") -> None:
        self.reports.append((self.world.received, order))
        decisions = self.world.received(order, failed)
        for end in only(EndMove, decisions):
            self.reached["moved" if not end.why else "not received"] += 1
        self._note_ends(decisions)

    def _note_ends(self, decisions: list[Any]) -> None:
        for end in only(EndMove, decisions):
            self.reached["to a smaller one"] += not end.why and end.node == "n1"
            self.reached["outgrown"] += "needs more" in end.why

    @precondition(lambda self: self.world.receiving)
    @rule()
    def receive_nothing(self) -> None:
        self._receive(next(iter(self.world.receiving.values())), "the disk is full")

    @rule(steps=st.integers(1, 4), failed=FAILED)
    def goes_on(self, steps: int, failed: str) -> None:
        """What is under way goes on, and may fail at last: else most histories end before a move does."""
        for left in reversed(range(steps)):
            why = "" if left else failed
            if self.world.running():
                self.report_all(Outcome.COMPLETED)
            elif self.world.receiving:
                self._receive(next(iter(self.world.receiving.values())), why)
            elif self.world.packing:
                self._pack(next(iter(self.world.packing.values())), why)
            else:
                self.world.advance(6.0)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        report, order = data.draw(st.sampled_from(self.reports))
        if order not in (*self.world.packing.values(), *self.world.receiving.values()):
            report(order)

    @precondition(lambda self: self.world.copies or self.world.removing)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = sorted({*self.world.copies, *self.world.removing.items()})
        key, node = data.draw(st.sampled_from(gone))
        self.reached["removed a copy"] += (key, node) in self.world.copies
        self.world.handle(events.EnvironmentRemoved(trajectory=key, node=node))

    @rule(source=TRAJECTORIES)
    def fork(self, source: str) -> None:
        self.forks += 1
        request = f"f{self.forks}"
        self.world.fork(source, f"c{self.forks}", on_busy="wait", request_id=request)

    @precondition(lambda self: self.world.forking)
    @rule()
    def end_forks(self) -> None:
        for order in list(self.world.forking.values()):
            self.world.forked(order)

    @rule(
        node=NODES,
        new_disk=st.sampled_from([False, False, True]),
        moves=st.sampled_from([True, True, True, False]),
    )
    def join(self, node: str, new_disk: bool, moves: bool) -> None:
        self.incarnations[node] += 1
        self.identities[node] += new_disk
        self.world.join(
            a_node(
                node,
                cpus=2 if node == "n1" else 1,
                memory_bytes=3 * GIB,
                identity=f"{node}-disk-{self.identities[node]}",
                incarnation=self.incarnations[node],
                moves=moves,
            )
        )

    @rule(node=NODES, seconds=st.sampled_from([0.0, 10.0, 60.0]))
    def lose(self, node: str, seconds: float) -> None:
        self.world.lose(node, self.incarnations[node])
        self.world.advance(seconds)

    @rule(node=NODES)
    def bring_back(self, node: str) -> None:
        self.world.bring_back(node, self.incarnations[node])

    @rule(node=NODES, revoked=st.booleans())
    def forget(self, node: str, revoked: bool) -> None:
        if revoked and self.identities[node] % 2:
            decisions = self.world.revoke(node)
        else:
            self.world.lose(node, self.incarnations[node])
            self.world.advance(60.0)
            decisions = self.world.forget(node)
        if only(Forget, decisions):
            self.identities[node] += 1

    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0, 130.0]))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @invariant()
    def no_action_waits_for_a_node_that_is_too_small(self) -> None:
        """What the actions of a trajectory need is there where it lives: an action that was accepted can run."""
        state = self.world.machine.state
        for trajectory in state.trajectories.values():
            if trajectory.node is None or trajectory.closing is not None:
                continue
            has = state.supply.nodes[trajectory.node].inventory.resources["cpu"].capacity
            for name in trajectory.line:
                if name in trajectory.live:
                    assert state.actions[name].action.cost["cpu"][0] <= has

    @rule(go_on_with_it=st.booleans())
    def restore(self, go_on_with_it: bool) -> None:
        if go_on_with_it:
            self.world.restart()
        else:
            self.world.double()

    def teardown(self) -> None:
        self.world.wind_up()
        self.world.judge_the_end()
        self.world.replay()


class RebalanceHistories(MoveHistories):
    """The same, beginning with an action that has waited for the node of its idle environment."""

    def begin(self) -> None:
        self.drain(set(), allowed=True)
        self.submit("t1", 0, safe=False, cpus=2)
        self.submit("t2", 0, safe=False, cpus=1)
        self.world.advance(FIRST_SECONDS)


TRIED = settings(
    max_examples=by_tier(40, 80, 1500),
    stateful_step_count=by_tier(40, 40, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu_seconds(8)  # the one check of all orders of moves, losses and restarts
@pytest.mark.timeout(1800)  # a failure takes minutes to shrink
@pytest.mark.parametrize("histories", [MoveHistories, RebalanceHistories])
def test_any_history_of_moves_keeps_every_environment_once(histories: type[MoveHistories]) -> None:
    MoveHistories.reached.clear()

    run_state_machine_as_test(histories, settings=TRIED)

    reached = {"packed for an action"}
    if histories is MoveHistories:
        more = {"removed a copy", "outgrown"}
        reached = {"packed", "moved", "to a smaller one"}
        reached |= by_tier(set(), more, more | {"not received"})
    assert reached <= set(+MoveHistories.reached), MoveHistories.reached
