"""One simulation: the production machine, and everything around it on one agenda.

Theory of operation. Events reach the loop's inbox. A *pass* takes all of them, asks the machine
once, and commits after `Overheads.pass_seconds`; what arrives meanwhile waits for the next pass, as
in `scheduler.runtime.loop.scheduler_loop`, so batches grow by themselves under load. A start makes no pass of its
own, for no cycle follows from it: it waits, with its time, for the next one. Decisions go to the modelled
nodes and trainers, whose answers come back as events. The machine is woken when it asked to be.
A run is over when the trainers' last step is and its environments are removed; what the machine
would still forget then (tombstones) is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from domain.action import LEASE
from domain.allocation import Allocation
from domain.decisions import (
    Abort,
    AssignRollout,
    Decision,
    Degraded,
    EndMove,
    Evict,
    Finish,
    FinishRollout,
    Forget,
    ForkEnvironment,
    Grant,
    MoveEnvironment,
    ParkRollout,
    Prepare,
    ReceiveEnvironment,
    Refuse,
    RemoveEnvironment,
    Renew,
    Requeue,
    Resize,
    ResumeRollout,
    SetBackends,
    TransferFile,
    Wake,
    WithdrawRollout,
)
from domain.errors import InvariantViolation
from domain.events import (
    ActionSubmitted,
    ConfigApplied,
    Event,
    NodeJoined,
    TimeAdvanced,
)
from domain.ids import ActionId, ResourceId, node_resource
from domain.inventory import Config
from managers.gpu.ledger import ChunkLedger
from managers.quota.ledger import ApiLedger
from managers.registry import load
from scheduler.core.machine import Machine
from scheduler.core.policies.registry import policy_named
from scheduler.core.state.supply import MakeLedger
from simulator.agenda import Agenda
from simulator.cluster import POOL, Cluster
from simulator.gpus import Restorable, in_memory
from simulator.machine import MachineCosts, SharedMachine
from simulator.machine_nodes import MachineNodes
from simulator.nodes import ModelledNodes, Tell
from simulator.overheads import Overheads
from simulator.tally import SimulationTally
from simulator.trainers import Trainers
from simulator.workloads.program import Workload

#: Called after each pass with what the machine saw and decided.
Watch = Callable[[Machine, list[Event], list[Decision]], None]
#: Called now and then with the number of finished actions.
Progress = Callable[[int], None]

_OF_ROLLOUTS: Final = (
    AssignRollout, WithdrawRollout, ParkRollout, ResumeRollout, FinishRollout, SetBackends,
)  # fmt: skip
#: Finished actions between two calls of a progress function.
PROGRESS_EVERY = 500


@dataclass(frozen=True)
class Switch:
    """A moment at which another configuration comes in force, and from which on is counted."""

    at_seconds: float
    config: Config
    models: Mapping[str, Restorable]
    #: Actions that only lead up to it.
    uncounted: frozenset[ActionId] = frozenset()


class Stalled(InvariantViolation):
    """Nothing more would ever happen although trajectories are not over."""


class ClusterSimulation:
    """A workload on a cluster under one policy."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: str = "minimum",
        *,
        overheads: Overheads | None = None,
        make_ledger: MakeLedger | None = None,
        failure_ratio: float = 0.0,
        seed: int = 0,
        depth: int | None = None,
        watch: Watch | None = None,
        progress: Progress | None = None,
        switch: Switch | None = None,
        concurrency: int | None = None,
        machine: MachineCosts | None = None,
    ) -> None:
        """``make_ledger`` None: the built-in ledgers; see `ModelledNodes` for ``failure_ratio``.

        ``depth`` replaces that of policies which look ahead (`policy_named`). ``concurrency``: trajectories at
        once (`Trainers`). ``machine``: everything runs on one machine with these costs.
        """
        self.overheads = overheads or Overheads()
        self.workload = workload
        self.agenda = Agenda()
        self.machine = Machine(make_ledger or load(()).make_ledger, cluster.config(policy))
        self.tally = SimulationTally(switch.uncounted if switch is not None else ())
        self._inbox: list[Event] = []
        #: Starts that no pass has taken yet, each with its own time.
        self._starts: list[Event] = []
        #: Puts an event into the loop's inbox now.
        self.tell = self._inbox.append
        shared = None if machine is None else SharedMachine(self.agenda, machine)
        self.nodes: ModelledNodes | MachineNodes
        if shared is None:
            self.nodes = ModelledNodes(
                *self._of_nodes(), failure_ratio=failure_ratio, seed=seed, models=cluster.served()
            )
        else:
            self.nodes = MachineNodes(shared, *self._of_nodes())
        self.trainers = Trainers(
            workload, self.agenda, self.overheads, self.tell,
            concurrency=concurrency, machine=shared,
        )  # fmt: skip
        self.passes = 0
        self.events = 0
        self._watch = watch
        self._progress = progress
        self._idle_from = 0.0
        self._handlers = self._obeyed_by()
        self._boot(cluster, policy)
        if switch is not None:
            self.agenda.at(switch.at_seconds, self._switch, switch)
        if depth is not None:
            self.machine.state.pools.policies[POOL] = policy_named(policy, depth=depth)

    def _of_nodes(self) -> tuple[Agenda, Overheads, Tell, Tell]:
        """Return what all nodes take: the agenda, and the ways to report starts and everything else."""
        return self.agenda, self.overheads, self.tell, self._starts.append

    def _obeyed_by(self) -> dict[type, Callable[[Any], None]]:
        """Return the handler of each type of decision."""
        return {
            Grant: self._grant,
            Finish: self._finish,
            Wake: self._plan_wake,
            Abort: self.nodes.abort,
            Renew: self.trainers.renewed,
            Resize: self._resize,
            Requeue: self._requeue,
            RemoveEnvironment: self.nodes.remove_environment,
            Degraded: _nothing,
            Prepare: self._prepare,
            # Workloads evict no service by hand, forget no node, move no files, and fork nothing.
            Evict: _unexpected,
            Forget: _unexpected,
            TransferFile: _unexpected,
            ForkEnvironment: _unexpected,
            MoveEnvironment: _unexpected,
            ReceiveEnvironment: _unexpected,
            EndMove: _unexpected,
            Refuse: _unexpected,
            # Workloads have no rollouts: their trajectories come from traces.
            **dict.fromkeys(_OF_ROLLOUTS, _unexpected),
        }

    def _boot(self, cluster: Cluster, policy: str) -> None:
        events: list[Event] = [ConfigApplied(config=cluster.config(policy))]
        events += (NodeJoined(node=node) for node in cluster.inventories())
        decisions = self.machine.handle(*events)
        for name, amounts in cluster.used.items():
            ledger = self.machine.state.supply.paced.get(ResourceId(name))
            if isinstance(ledger, ApiLedger):
                ledger.presume(amounts)
        for node in cluster.inventories():
            books = self.machine.state.supply.resident.get(node_resource("gpu", node.name))
            if isinstance(books, ChunkLedger) and node.resources["gpu"].residents:
                homes, services = (
                    node.resources["gpu"].residents,
                    self.machine.state.config.services,
                )
                books.recall(in_memory(homes, services, books.memory_bytes))
        if self._watch is not None:
            self._watch(self.machine, events, decisions)

    def _switch(self, switch: Switch) -> None:
        self.nodes.serve(switch.models)
        self.tally.begin(self.agenda.now)
        self.tell(ConfigApplied(config=switch.config))

    def inject(self, moment: float, *events: Event) -> None:
        """Let something happen from outside: a node is lost, a policy is switched."""
        for event in events:
            self.agenda.at(moment, self.tell, event)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Continue a running action with other units, once the command has reached its node."""
        self.tally.resize(action_id, allocation, self.agenda.now)
        self.nodes.resize_soon(action_id, attempt, allocation.amount)

    def run(self) -> SimulationTally:
        """Play the whole workload, and let nodes clean up. Raises Stalled when it can never end."""
        self.agenda.at(0.0, self.trainers.begin)
        agenda, trainers = self.agenda, self.trainers
        trajectories = self.machine.state.trajectories
        advance = agenda.advance
        while not trainers.over or trajectories:
            if self._inbox:
                # What still happens until the loop is free, or at this very moment, goes first.
                now, idle_from = agenda.now, self._idle_from
                agenda.run_until(idle_from if idle_from > now else now)
                self._pass()
            elif not advance():
                waiting = len(self.machine.state.actions)
                raise Stalled(f"nothing more happens at {agenda.now:g} s, {waiting} wait")
        if self._progress is not None:
            self._progress(len(self.tally.rows))
        return self.tally

    def _pass(self) -> None:
        now = self.agenda.now
        for event in self._inbox:
            event.at = now
            if type(event) is ActionSubmitted:
                event.lag_seconds = now - event.accepted_at
        batch = self._starts + self._inbox
        self._starts.clear()
        self._inbox.clear()
        decisions = self.machine.handle(*batch)
        self._idle_from = now + self.overheads.pass_seconds
        self.passes += 1
        self.events += len(batch)
        handlers = self._handlers
        for decision in decisions:
            handlers[type(decision)](decision)
        if self._watch is not None:
            self._watch(self.machine, batch, decisions)

    def _grant(self, grant: Grant) -> None:
        self.tally.hold(grant.action_id, grant.allocations, self.agenda.now)
        act = self.trainers.act_of(grant.action_id)
        action = act.action
        if action.kind is LEASE:
            self.trainers.granted(grant)
        else:
            self.nodes.grant(grant, act.work, action.trajectory_key, action.timeout_seconds)

    def _resize(self, resize: Resize) -> None:
        self.tally.let_go(resize.action_id, self.agenda.now)
        self.tally.hold(resize.action_id, resize.allocations, self.agenda.now)
        self.nodes.resize(resize.action_id, resize.attempt, resize.allocation.amount)

    def _finish(self, finish: Finish) -> None:
        act = self.trainers.act_of(finish.action_id)
        family = act.action.family or finish.kind._value_
        counts = self.tally.finish(finish, family, act.work.base_seconds, self.agenda.now)
        self.trainers.finished(finish)
        if counts and self._progress is not None and not len(self.tally.rows) % PROGRESS_EVERY:
            self._progress(len(self.tally.rows))

    def _prepare(self, prepare: Prepare) -> None:
        self.tally.restores_ahead += prepare.awake
        self.nodes.prepare(prepare)

    def _requeue(self, requeue: Requeue) -> None:
        self.tally.let_go(requeue.action_id, self.agenda.now)
        self.tally.requeued += 1

    def _plan_wake(self, wake: Wake) -> None:
        self.agenda.at(wake.wake_at, self._wake, wake.wake_at)

    def _wake(self, asked_at: float) -> None:
        # The machine may have moved its wish since; then another entry carries it.
        if self.machine.state.timers.asked_wake == asked_at:
            self.tell(TimeAdvanced())


def _nothing(_: Decision) -> None:
    """Ignore decisions that only inform readers."""


def _unexpected(decision: Decision) -> None:
    raise InvariantViolation(f"no workload asks for this: {decision}")
