"""A machine of the core, and the world around it in short words.

Trainers submit, nodes report, time passes on a virtual clock. After every step the invariants are
checked.
"""

from __future__ import annotations

from typing import Any

from contract.responses import WaitDetails
from domain import events
from domain.action import Action, ActionState, Outcome
from domain.decisions import (
    Decision,
    Finish,
    ForkEnvironment,
    Grant,
    MoveEnvironment,
    ReceiveEnvironment,
    Wake,
)
from domain.ids import ActionId, ResourceId, TrajectoryKey, trajectory_key
from domain.inventory import Config, NodeInventory
from domain.resources import units
from scheduler.core.advice.facts import ActionStatus
from scheduler.core.machine import Machine
from scheduler.core.state import invariants
from scheduler.core.state.live import LiveAction
from scheduler.runtime.rendering import wait_details
from tests.builders import START, a_config, a_node, finished, make_ledger, only


class Scenario:
    """A machine, its clock, and everything it has decided."""

    def __init__(
        self, *nodes: NodeInventory, config: Config | None = None, empty: bool = False
    ) -> None:
        self.machine = Machine(make_ledger, config or a_config())
        self.now = START
        #: Everything decided so far.
        self.decisions: list[Decision] = []
        if not empty:
            self.join(*(nodes or (a_node(),)))

    def handle(self, *batch: events.Event) -> list[Decision]:
        """Give the machine a batch of events that happen now."""
        for event in batch:
            event.at = self.now
        decisions = self.machine.handle(*batch)
        self.decisions += decisions
        self.check()
        return decisions

    def check(self) -> None:
        """Raise when an invariant is broken."""
        invariants.check(self.machine.state)

    # What trainers do

    def submit(self, *actions: Action, lag_seconds: float = 0.0) -> list[Decision]:
        """Submit actions in one batch."""
        return self.handle(
            *(events.ActionSubmitted(action=a, lag_seconds=lag_seconds) for a in actions)
        )

    def cancel(self, name: str, project: str = "default") -> list[Decision]:
        return self.handle(events.ActionCancelRequested(action_id=ActionId(name), project=project))

    def renew(self, name: str, ttl_seconds: float | None = None, project: str = "default"):
        return self.handle(
            events.LeaseRenewed(action_id=ActionId(name), project=project, ttl_seconds=ttl_seconds)
        )

    def release(self, name: str, project: str = "default") -> list[Decision]:
        return self.handle(events.LeaseReleased(action_id=ActionId(name), project=project))

    def open_trajectory(self, name: str, **fields: Any) -> list[Decision]:
        fields.setdefault("project", "default")
        return self.handle(events.TrajectoryOpened(task="task", trajectory=name, **fields))

    def pause(self, task: str = "task", *, paused: bool = True) -> list[Decision]:
        return self.handle(events.TaskPaused(project="default", task=task, paused=paused))

    def prioritise(self, priority: int | None, task: str = "task") -> list[Decision]:
        return self.handle(events.TaskPrioritised(project="default", task=task, priority=priority))

    def finish_trajectory(self, name: str) -> list[Decision]:
        return self.handle(events.TrajectoryFinished(project="default", trajectory=name))

    def request_file(self, trajectory: str, verb: str = "put", **fields: Any) -> list[Decision]:
        fields.setdefault("project", "default")
        return self.handle(
            events.FileRequested(
                trajectory=trajectory,
                request_id="r1",
                verb=verb,
                path="a.txt",
                reply_to="web-1",
                **fields,
            )
        )

    def fork(
        self, source: str, *children: str, on_busy: str = "refuse", request_id: str = "f1"
    ) -> list[Decision]:
        """Request forks of a trajectory."""
        return self.handle(
            events.TrajectoriesForked(
                project="default",
                source=source,
                children=children,
                request_id=request_id,
                reply_to="web-1",
                on_busy=on_busy,
            )
        )

    # What nodes report

    def forked(self, order: ForkEnvironment, failed: str = "") -> list[Decision]:
        """The node has made the forks of ``order``, or failed to."""
        return self.handle(
            events.EnvironmentsForked(
                source=order.source,
                node=order.node,
                request_id=order.request_id,
                children=order.children,
                failed=failed,
            )
        )

    def packed(self, order: MoveEnvironment, failed: str = "", stays: str = "") -> list[Decision]:
        """The source of a move has packed the environment, or refuses."""
        return self.handle(
            events.EnvironmentPacked(
                trajectory=order.trajectory,
                node=order.node,
                number=order.number,
                failed=failed,
                stays=stays,
            )
        )

    def received(self, order: ReceiveEnvironment, failed: str = "") -> list[Decision]:
        """The target of a move has the environment, or failed to get it."""
        return self.handle(
            events.EnvironmentReceived(
                trajectory=order.trajectory, node=order.node, number=order.number, failed=failed
            )
        )

    def start(self, name: str, attempt: int | None = None) -> list[Decision]:
        """The node has spawned the action's work."""
        live = self.live(name)
        assert live.node is not None
        return self.handle(
            events.ActionStarted(action_id=live.id, node=live.node, attempt=attempt or live.attempt)
        )

    def finish(
        self, *names: str, outcome: Outcome = Outcome.COMPLETED, **fields: Any
    ) -> list[Decision]:
        """Nodes report the end of granted actions, in one batch."""
        return self.handle(*(self.report(name, outcome, **fields) for name in names))

    def report(
        self, name: str, outcome: Outcome = Outcome.COMPLETED, **fields: Any
    ) -> events.ActionFinished:
        """Return the report of a granted action's present attempt, or of the one in ``fields``."""
        if "node" not in fields or "attempt" not in fields:
            live = self.live(name)
            fields = {"node": live.node, "attempt": live.attempt} | fields
        return events.ActionFinished(action_id=ActionId(name), outcome=outcome, **fields)

    def remove_environment(self, trajectory: str, node: str = "n1") -> list[Decision]:
        """The node has removed the environment."""
        return self.handle(events.EnvironmentRemoved(trajectory=self.key(trajectory), node=node))

    def join(self, *nodes: NodeInventory) -> list[Decision]:
        return self.handle(*(events.NodeJoined(node=node) for node in nodes))

    def lose(self, node: str, incarnation: int = 1) -> list[Decision]:
        """The node falls silent."""
        return self.handle(events.NodeLost(node=node, incarnation=incarnation))

    def fence(self, node: str, incarnation: int = 1) -> list[Decision]:
        """The engine that placed the node has ended it."""
        return self.handle(events.NodeFenced(node=node, incarnation=incarnation))

    def revoke(self, node: str) -> list[Decision]:
        """The node may take part no more."""
        return self.handle(events.NodeRevoked(node=node))

    def lose_for_good(self, node: str, incarnation: int = 1) -> list[Decision]:
        """The node falls silent, and its grace passes."""
        decisions = self.lose(node, incarnation)
        return decisions + self.advance(self.machine.state.config.node_grace_seconds)

    def bring_back(self, node: str, incarnation: int = 1) -> list[Decision]:
        """The silent node shows life again."""
        return self.handle(events.NodeReturned(node=node, incarnation=incarnation))

    # What operators and time do

    @staticmethod
    def asked_to_forget(node: str) -> events.NodeForgetAsked:
        return events.NodeForgetAsked(node=node, request_id="r1", reply_to="web-1")

    def forget(self, node: str) -> list[Decision]:
        """Request that a node be forgotten that does not return."""
        return self.handle(self.asked_to_forget(node))

    def configure(self, config: Config) -> list[Decision]:
        return self.handle(events.ConfigApplied(config=config))

    def advance(self, seconds: float) -> list[Decision]:
        """Let time pass; the machine is woken at its timers, and at the end."""
        until, decisions = self.now + seconds, []
        while (
            asked := self.machine.state.timers.asked_wake
        ) is not None and self.now < asked <= until:
            self.now = asked
            decisions += self.handle(events.TimeAdvanced())
        self.now = until
        return decisions + self.handle(events.TimeAdvanced())

    # What one can see

    def live(self, name: str) -> LiveAction:
        live = self.machine.live(ActionId(name))
        assert live is not None, f"{name} is not live"
        return live

    def is_live(self, name: str) -> bool:
        return self.machine.live(ActionId(name)) is not None

    def state(self, name: str) -> ActionState:
        """Return where an action is; one that has its `Finish` is finished."""
        return ActionState.FINISHED if name in self.outcomes else self.live(name).state

    def holding(self) -> set[str]:
        """Return the actions that hold units now."""
        actions = self.machine.state.actions.values()
        return {str(live.id) for live in actions if live.state is not ActionState.QUEUED}

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Outcomes of all finished actions."""
        return finished(self.decisions)

    def the_finish(self, name: str) -> Finish:
        """Return the one `Finish` of an action."""
        (finish,) = [f for f in only(Finish, self.decisions) if f.action_id == name]
        return finish

    def the_grant(self, name: str) -> Grant:
        """Return the latest `Grant` of an action."""
        return [grant for grant in only(Grant, self.decisions) if grant.action_id == name][-1]

    def wakes(self) -> list[float]:
        """Return the times of all timers of the machine, as seconds from the start."""
        return [wake.wake_at - START for wake in only(Wake, self.decisions)]

    def why(self, name: str) -> WaitDetails:
        """Return why a queued action waits."""
        status = self.machine.explain(ActionId(name))
        assert status is not None, f"{name} is not live"
        why = wait_details(ActionStatus(status.live, status.waiting))
        assert why is not None, f"{name} does not wait"
        return why

    def free(self, resource: str) -> float:
        """Return what is free of a resource, in units (memory: bytes)."""
        ledger = self.machine.state.supply.ledgers[ResourceId(resource)]
        return ledger.free if resource.startswith("memory:") else units(ledger.free)

    def node_of(self, trajectory: str) -> str | None:
        """Return where a trajectory's environment is."""
        return self.machine.state.trajectories[self.key(trajectory)].node

    def has_trajectory(self, trajectory: str) -> bool:
        return self.key(trajectory) in self.machine.state.trajectories

    @staticmethod
    def key(trajectory: str) -> TrajectoryKey:
        return trajectory_key("default", trajectory)
