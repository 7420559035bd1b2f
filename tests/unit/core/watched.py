"""A scenario with an observer that keeps its own books.

`Watched` knows what each node physically runs: from the grant until the node reports. It holds the
core to account with that alone, never with the core's own state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from domain import events
from domain.action import Action, Kind, Outcome
from domain.decisions import (
    Abort,
    Decision,
    EndMove,
    Finish,
    Forget,
    ForkEnvironment,
    Grant,
    MoveEnvironment,
    ReceiveEnvironment,
    RemoveEnvironment,
    Requeue,
    Resize,
    SetFleet,
)
from domain.fleets import fleet_of, fleet_resource
from domain.ids import ResourceId, TrajectoryKey, node_resource
from domain.inventory import NodeInventory, PoolConfig
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from tests.builders import a_config, a_fleet, a_machine, a_node, granted, make_ledger
from tests.scenario import Scenario

#: In place of a node: the gateway that holds a generation.
GATEWAY = ""
FIRST_CONFIG = a_config(
    apis={"search": 2, "code": 1},
    fleets={"m": a_fleet((1, 2))},
    pools=[PoolConfig("default", policy="paper")],
    node_grace_seconds=10.0,
)


class Attempt(NamedTuple):
    """One attempt at an action, in the record of its node."""

    action_id: str
    attempt: int


class Numbered(NamedTuple):
    """One move of a trajectory."""

    trajectory: TrajectoryKey
    number: int


class Watched(Scenario):
    """A scenario that checks every decision against what runs on the nodes."""

    def __init__(self) -> None:
        super().__init__(empty=True, config=FIRST_CONFIG)
        self.submitted: dict[str, Action] = {}
        self.finishes: Counter[str] = Counter()
        #: What each node really runs.
        self.physical: dict[str, dict[Attempt, Grant]] = defaultdict(dict)
        self.granted_on: dict[Attempt, str] = {}
        #: Actions that were ever granted, and those that a node was asked to cancel.
        self.granted: set[str] = set()
        self.cancelled: set[str] = set()
        self.removing: dict[TrajectoryKey, str] = {}
        #: Forks that nodes make now, by request.
        self.forking: dict[str, ForkEnvironment] = {}
        #: Orders of moves that nodes have not reported, by trajectory and number.
        self.packing: dict[Numbered, MoveEnvironment] = {}
        self.receiving: dict[Numbered, ReceiveEnvironment] = {}
        #: Trajectory → node where it lives, by the decisions, and the nodes that really have its environment for its move.
        self.homes: dict[TrajectoryKey, str] = {}
        self.arrived: set[tuple[TrajectoryKey, str]] = set()
        #: Trajectories that their node holds for a move, and copies that nodes are to remove.
        self.on_hold: set[TrajectoryKey] = set()
        self.copies: set[tuple[TrajectoryKey, str]] = set()
        self.nodes: dict[str, NodeInventory] = {}
        #: Slots of each worker, by its resource; of those that get no further generation 0.
        self.slots = {"fleet:m#1": 1, "fleet:m#2": 2}
        self.history: list[tuple[list[events.Event], list[Decision]]] = []
        #: A restored machine that must decide as the first one does.
        self.twin: Machine | None = None

    def handle(self, *batch: events.Event) -> list[Decision]:
        self._see_inputs(batch)
        decisions = super().handle(*batch)
        self.history.append((list(batch), decisions))
        if self.twin is not None:
            assert self.twin.handle(*batch) == decisions
        for decision in decisions:
            self._judge(decision)
        return decisions

    def double(self) -> None:
        """Let a machine restored from a snapshot decide everything once more from here on."""
        self.twin = snapshot.load(snapshot.dump(self.machine), make_ledger)

    def restart(self) -> None:
        """Go on with a machine restored from a snapshot."""
        self.machine = snapshot.load(snapshot.dump(self.machine), make_ledger)
        self.check()

    def no_waiting_action_fits(self) -> None:
        """I8: raise if a scan of all waiting actions would admit one."""
        machine = snapshot.load(snapshot.dump(self.machine), make_ledger)
        machine.state.dirty = True
        assert granted(machine.handle()) == []

    def replay(self) -> None:
        """Raise unless a fresh machine decides the same about the same events."""
        machine = a_machine(config=FIRST_CONFIG)
        for batch, decisions in self.history:
            assert machine.handle(*batch) == decisions

    def running(self) -> list[tuple[str, Attempt]]:
        """Return what nodes really run, in the order of the grants."""
        return [(node, attempt) for node, runs in self.physical.items() for attempt in runs]

    def _see_inputs(self, batch: tuple[events.Event, ...]) -> None:
        for event in batch:
            if isinstance(event, events.ActionSubmitted):
                self.submitted[event.action.id] = event.action
            elif isinstance(event, events.ActionFinished):
                self.physical[event.node].pop(Attempt(event.action_id, event.attempt), None)
            elif isinstance(event, events.NodeJoined):
                before = self.nodes.get(event.node.name)
                if before is not None and before.identity != event.node.identity:
                    self._forget_machine(event.node.name)
                if not event.node.moves:
                    self._forget_orders_of_moves(event.node.name)
                self.nodes[event.node.name] = event.node
            elif isinstance(event, events.EnvironmentRemoved):
                self._see_removal(event)
            elif isinstance(event, events.EnvironmentsForked):
                self.forking.pop(event.request_id, None)
            elif isinstance(event, events.EnvironmentPacked | events.EnvironmentReceived):
                self._see_move(event)

    def _see_move(self, event: events.EnvironmentPacked | events.EnvironmentReceived) -> None:
        move = Numbered(event.trajectory, event.number)
        if isinstance(event, events.EnvironmentPacked):
            self.packing.pop(move, None)
            return
        self.receiving.pop(move, None)
        if not event.failed:
            self.arrived.add((event.trajectory, event.node))

    def _see_removal(self, event: events.EnvironmentRemoved) -> None:
        self.copies.discard((event.trajectory, event.node))
        self.arrived.discard((event.trajectory, event.node))
        if self.removing.get(event.trajectory) == event.node:
            del self.removing[event.trajectory]
            self._forget_home(event.trajectory)

    def _forget_home(self, key: TrajectoryKey) -> None:
        self.homes.pop(key, None)
        self.on_hold.discard(key)

    def _forget_machine(self, node: str) -> None:
        """Another machine has taken the node's name: nothing of the former runs here."""
        self.physical.pop(node, None)
        for key in [key for key, home in self.homes.items() if home == node]:
            self._forget_home(key)
        self.copies = {each for each in self.copies if each[1] != node}
        self.arrived = {each for each in self.arrived if each[1] != node}
        self.removing = {key: n for key, n in self.removing.items() if n != node}
        self.forking = {key: each for key, each in self.forking.items() if each.node != node}
        self._forget_orders_of_moves(node)

    def _forget_orders_of_moves(self, node: str) -> None:
        """The worker of an earlier version sets aside what it cannot read."""
        self.packing = {key: each for key, each in self.packing.items() if each.node != node}
        self.receiving = {key: each for key, each in self.receiving.items() if each.node != node}

    def _judge(self, decision: Decision) -> None:
        if isinstance(decision, Grant):
            self._judge_grant(decision)
        elif isinstance(decision, Resize):
            self._judge_resize(decision)
        elif isinstance(decision, Finish):
            self._judge_finish(decision)
        elif isinstance(decision, Abort):
            self._judge_abort(decision)
        elif isinstance(decision, Requeue):
            assert decision.action_id not in self.cancelled, "tried again after a cancel"
            self._drop_generation(decision.action_id)
        elif isinstance(decision, SetFleet):
            self._learn_slots(decision)
        else:
            self._judge_of_environments(decision)

    def _judge_abort(self, abort: Abort) -> None:
        """I7: only what was granted there is ended there."""
        assert self.granted_on[Attempt(abort.action_id, abort.attempt)] == abort.node
        if abort.outcome is Outcome.CANCELLED:
            self.cancelled.add(abort.action_id)

    def _judge_of_environments(self, decision: Decision) -> None:
        if isinstance(decision, RemoveEnvironment):
            assert decision.trajectory not in self.removing
            self.removing[decision.trajectory] = decision.node
        elif isinstance(decision, ForkEnvironment):
            self._judge_fork(decision)
        elif isinstance(decision, MoveEnvironment):
            self._judge_move(decision)
        elif isinstance(decision, ReceiveEnvironment):
            assert decision.trajectory in self.on_hold, "fetched while it is used"
            assert (decision.trajectory, decision.node) not in self.copies
            self.receiving[Numbered(decision.trajectory, decision.number)] = decision
        elif isinstance(decision, EndMove):
            self._judge_end_of_move(decision)
        elif isinstance(decision, Forget):
            # Its actions are over for all others; it ends them before it joins again.
            self._forget_machine(decision.node)

    def _judge_grant(self, grant: Grant) -> None:
        action = self.submitted[grant.action_id]
        assert not self.finishes[grant.action_id], "granted after its end"
        self.granted.add(grant.action_id)
        _judge_counts(action, grant)
        attempt = Attempt(grant.action_id, grant.attempt)
        if action.generation is not None:
            self._judge_generation(action, attempt, grant)
            return
        if grant.node is None:
            return
        assert attempt not in self.granted_on, "granted twice"
        if grant.attempt > 1:
            self._judge_repetition(action, grant)
        self.granted_on[attempt] = grant.node
        if action.kind is Kind.LEASE:
            return
        runs = self.physical[grant.node]
        _judge_cores(grant, runs)
        if action.kind is Kind.EXEC and action.trajectory_key is not None:
            key = action.trajectory_key
            assert key not in self.on_hold, "runs in the middle of a move"
            assert self.homes.setdefault(key, grant.node) == grant.node, "runs elsewhere"
            for fork in self.forking.values():
                assert action.trajectory_key not in (fork.source, *fork.children), "runs in a fork"
            for other in runs:
                also = self.submitted[other.action_id]
                same = also.trajectory_key == action.trajectory_key
                assert not (same and also.kind is Kind.EXEC), "two at once in one environment"
        runs[attempt] = grant

    def _judge_generation(self, action: Action, attempt: Attempt, grant: Grant) -> None:
        """I4: no worker runs more generations than it has slots; I3: again only if it may."""
        if grant.attempt > 1:
            self._judge_repetition(action, grant)
        self.granted_on[attempt] = GATEWAY
        runs = self.physical[GATEWAY]
        runs[attempt] = grant
        (held,) = grant.allocations
        beside = [each for each in runs.values() if each.allocations[0].units == held.units and
                  each.allocations[0].resource == held.resource]  # fmt: skip
        assert len(beside) <= self.slots[held.resource]

    def _judge_fork(self, order: ForkEnvironment) -> None:
        """No command runs in an environment that is forked, and no other fork of it is made."""
        concerned = {order.source, *order.children}
        for other in self.physical[order.node]:
            action = self.submitted[other.action_id]
            assert action.kind is not Kind.EXEC or action.trajectory_key not in concerned
        for fork in self.forking.values():
            assert not concerned & {fork.source, *fork.children}, "forked twice at once"
        assert not concerned & self.removing.keys(), "forked after its end"
        assert order.request_id not in self.forking
        self.forking[order.request_id] = order

    def _judge_move(self, order: MoveEnvironment) -> None:
        """Nothing runs in an environment that is moved, and the order goes to the node that has it."""
        key = order.trajectory
        assert self.homes.setdefault(key, order.node) == order.node
        assert order.target != order.node
        assert key not in self.on_hold, "moved twice at once"
        assert key not in self.removing, "moved after its end"
        for run in self.physical[order.node]:
            action = self.submitted[run.action_id]
            assert action.kind is not Kind.EXEC or action.trajectory_key != key
        self.on_hold.add(key)
        self.packing[Numbered(key, order.number)] = order

    def _judge_end_of_move(self, end: EndMove) -> None:
        """The environment is removed where the trajectory does not live on, and only if it is elsewhere."""
        key = end.trajectory
        assert Numbered(key, end.number) not in self.packing, "its files may be sealed now"
        if end.node == end.lives_on:
            assert self.homes[key] == end.node
            self.on_hold.discard(key)
            return
        if self.homes.get(key) == end.node:
            assert (key, end.lives_on) in self.arrived, "removed before the other node has it"
            self.homes[key] = end.lives_on
            self.on_hold.discard(key)
        self.copies.add((key, end.node))

    def _judge_resize(self, resize: Resize) -> None:
        """A node that gets this message goes on with these units at once, and no other action has them."""
        action = self.submitted[resize.action_id]
        assert action.malleable
        assert resize.allocation.amount >= action.cost[resize.allocation.resource.split(":")[0]][0]
        attempt = Attempt(resize.action_id, resize.attempt)
        run = self.physical[resize.node].pop(attempt)
        others = [a for a in run.allocations if a.resource != resize.allocation.resource]
        changed = replace(run, allocations=(*others, resize.allocation))
        _judge_cores(changed, self.physical[resize.node])
        self.physical[resize.node][attempt] = changed

    def _judge_repetition(self, action: Action, grant: Grant) -> None:
        """I3: again only if it is replay-safe, or its node reported that it never started."""
        assert action.replay_safe or Attempt(action.id, grant.attempt - 1) in self._never_started()

    def _never_started(self) -> set[Attempt]:
        return {
            Attempt(event.action_id, event.attempt)
            for batch, _ in self.history
            for event in batch
            if isinstance(event, events.ActionFinished) and event.never_started
        }

    def _drop_generation(self, action_id: str) -> None:
        """Let its gateway give up a generation: it was not renewed in time, or has ended."""
        runs = self.physical[GATEWAY]
        for attempt in [each for each in runs if each.action_id == action_id]:
            del runs[attempt]

    def _learn_slots(self, known: SetFleet) -> None:
        self.slots |= {
            f"fleet:{known.fleet}#{each.number}": each.slots if each.usable else 0
            for each in known.workers
        }

    def _judge_finish(self, finish: Finish) -> None:
        self._drop_generation(finish.action_id)
        self.finishes[finish.action_id] += 1
        assert self.finishes[finish.action_id] == 1, "I1: one end"
        assert finish.reward is None or finish.outcome is Outcome.COMPLETED, "I2"
        if finish.outcome is Outcome.EXPIRED:
            assert finish.action_id not in self.granted, "expired after a grant"
        timing = finish.timing
        parts = timing.queue_seconds, timing.overhead_seconds, timing.execution_seconds
        assert min(parts) >= -1e-9
        assert abs(sum(parts) - timing.act_seconds) < 1e-6

    # The end of the story

    def wind_up(self) -> None:
        """Let everything end that can: nodes return, limits are lifted, work is done, time passes."""
        self.pause(paused=False)
        self.configure(a_config(apis={"search": 50, "code": 50}, revision=10**9))
        for name in list(self.nodes):
            self.bring_back(name, self.nodes[name].incarnation)
        self.join(a_node("large", cpus=64, memory_bytes=2**40))
        for _ in range(1000):
            self._settle_everything()
            if not self.machine.state.actions and not self.machine.state.trajectories:
                return
            self.advance(10_000)

    def _settle_everything(self) -> None:
        while reports := list(self._final_reports()):
            self.handle(*reports)
        for order in list(self.forking.values()):
            self.forked(order)
        for moved in list(self.packing.values()):
            self.packed(moved)
        for fetched in list(self.receiving.values()):
            self.received(fetched)
        for key, node in sorted(self.copies):
            self.handle(events.EnvironmentRemoved(trajectory=key, node=node))
        for key, node in list(self.removing.items()):
            self.handle(events.EnvironmentRemoved(trajectory=key, node=node))

    def _final_reports(self) -> Iterator[events.Event]:
        for node, (action_id, attempt) in self.running():
            yield self.report(action_id, node=node, attempt=attempt, execution_seconds=0.1)

    def judge_the_end(self) -> None:
        """Raise unless every action has its one end and nothing is held by anybody."""
        assert self.finishes == Counter(self.submitted.keys())
        state = self.machine.state
        assert not state.trajectories
        held: Mapping[str, object] = {
            r: ledger.holders() for r, ledger in state.supply.ledgers.items()
        }
        assert not any(held.values()), held


def _judge_counts(action: Action, grant: Grant) -> None:
    """Raise unless the grant has one feasible count of each requested resource."""
    amounts = {_cost_name(each.resource): each.amount for each in grant.allocations}
    assert len(amounts) == len(action.cost), (action.cost, amounts)
    for name, counts in action.cost.items():
        amount = amounts.get(ResourceId(name)) or amounts[node_resource(name, grant.node or "")]
        assert amount in counts, (name, counts, amount)


def _cost_name(resource: ResourceId) -> ResourceId:
    worker = fleet_of(resource)
    return resource if worker is None else fleet_resource(worker[0])


def _judge_cores(grant: Grant, runs: Mapping[Attempt, Grant]) -> None:
    """I4: no core is handed out exclusively while another attempt really runs on it."""
    for other in runs.values():
        for mine in grant.allocations:
            for theirs in other.allocations:
                if mine.yields or theirs.yields:
                    continue  # with a lower weight, on whatever cores
                if mine.resource == theirs.resource and not (mine.shared and theirs.shared):
                    assert not set(mine.units) & set(theirs.units), (grant, other)
