"""Fold journal entries into small frames for the live page.

Theory of operation. `FrameFold.fold` keeps counts, holdings and durations up to date, a few
microseconds for each event; `FrameFold.frames` says how things stand, some hundred microseconds,
four times a second whatever the load. Nothing stays of a finished action but its place in the
counts and, for the newest twenty, a row: state is bounded by live actions, nodes, projects and open
trajectories. A restarted fold is filled by folding the retained journal again.

Frames carry whole states, so a reader may miss any of them. Only the points of the charts are
increments: a frame repeats the newest `history.TAIL` seconds, a snapshot has all of them.

What the journal no longer says is not invented: an action whose submission was trimmed away is
known from its grant on, without a task. Units that a silent node keeps for actions that were given
up count as free here; the node itself is shown as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain.action import ActionState, Kind
from domain.allocation import Allocation
from domain.codec import JournalEntry
from domain.decisions import (
    Evict,
    Finish,
    Forget,
    Grant,
    Prepare,
    Requeue,
    Resize,
    TransferFile,
)
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    ConfigApplied,
    EnvironmentRemoved,
    NodeJoined,
    NodeLost,
    NodeReturned,
    ServicePrepared,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import TrajectoryKey, task_key, trajectory_key
from tangram_web.live.capacity import Capacity
from tangram_web.live.flow import Flow
from tangram_web.live.frame import Frame
from tangram_web.live.gpu_history import Scenes
from tangram_web.live.history import LENGTH, TAIL
from tangram_web.live.holders import Holders
from tangram_web.live.origins import Origins
from tangram_web.live.overview import overview_body
from tangram_web.live.pasts import MOST, Pasts
from tangram_web.live.population import Live, Population
from tangram_web.live.residents import Residents
from tangram_web.live.rings import Rings
from tangram_web.metrics.totals import Totals, granted_cpu_seconds

OVERVIEW: Final = "overview"
NODES: Final = "nodes"
HOLDERS: Final = "holders"
TOPICS: Final = (OVERVIEW, NODES, HOLDERS)

__all__ = ["HOLDERS", "NODES", "OVERVIEW", "TOPICS", "Frame", "FrameFold"]


class FrameFold:
    """The journal, folded into what the live page shows."""

    def __init__(self, totals: Totals | None = None, projects: int = MOST) -> None:
        #: Where to count what happens; a refilled fold meets entries that are counted already.
        self._totals = totals
        self._counting = False
        self.population = Population()
        self.capacity = Capacity()
        self.flow = Flow()
        #: The same of the projects that did something last, so many of them.
        self.pasts = Pasts(self.flow, projects)
        #: What passed, for weeks, coarser as it gets older.
        self.rings = Rings()
        self.holders = Holders()
        self.residents = Residents()
        self.scenes = Scenes()
        self.origins = Origins()
        self._at = 0.0
        self.wall_offset = 0.0
        #: Wall clock at the oldest entry.
        self._since: float | None = None
        #: What the names of its topics end in.
        self._suffix = ""
        self._revision = 0
        self.nodes_revision = 0
        #: The newest rows of nodes, and the revision that they show.
        self._rows: list[dict[str, Any]] = []
        self._rows_of = -1
        self._seqs = dict.fromkeys(TOPICS, 0)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ActionSubmitted: self._submit,
            ActionStarted: self._start,
            ActionFinished: self._report,
            Grant: self._grant,
            Evict: lambda decision: self.residents.evict(decision, self._at),
            Prepare: self._prepare,
            ServicePrepared: lambda event: self.residents.prepared(event, self._at),
            Resize: self._resize,
            Requeue: self._requeue,
            Finish: self._finish,
            NodeJoined: self._join,
            NodeLost: self._lose,
            NodeReturned: self._return,
            Forget: self._forget,
            ConfigApplied: self._configure,
            TaskOpened: self._open_task,
            TrajectoryOpened: self._open_trajectory,
            TrajectoryFinished: self._close_trajectory,
            TransferFile: self._transfer_file,
            EnvironmentRemoved: self._remove_environment,
        }

    def fold(self, entry: JournalEntry, *, counted: bool = False) -> None:
        """Take one cycle in: what the core saw, then what it decided."""
        self._counting = self._totals is not None and not counted
        self.wall_offset = entry.wall_offset_seconds
        if self._since is None:
            self._since = entry.at + entry.wall_offset_seconds
        self._advance(entry.at)
        for event in entry.events:
            self._take(event)
        for decision in entry.decisions:
            self._take(decision)

    def journal_time(self, wall_seconds: float) -> float:
        """Return the journal time at a reading of the wall clock, never before the newest entry."""
        return max(self._at, wall_seconds - self.wall_offset)

    def frames(self, at: float) -> dict[str, Frame]:
        """Return what each topic says at journal time ``at``."""
        self._advance(at)
        overview, nodes, holders = (
            self._overview(),
            {"nodes": self.rows_of_nodes()},
            self._holders(),
        )
        backlog = {"points": self.flow.history.points(LENGTH)}
        held = self.holders.revision + self.residents.revision
        frames = (
            self._frame(OVERVIEW, self._revision, overview, backlog),
            self._frame(NODES, self.nodes_revision, nodes, {}),
            self._frame(HOLDERS, held, holders, {}),
        )
        return {frame.topic: frame for frame in frames}

    def _overview(self) -> dict[str, Any]:
        body = overview_body(self.population, self.capacity, self.flow, self._at, self.wall_offset)
        return body | {"since": self._since, "points": self.flow.history.points(TAIL)}

    def rows_of_nodes(self) -> list[dict[str, Any]]:
        """Return one row per node, made anew when something changed on any of them."""
        if self._rows_of != self.nodes_revision:
            self._rows_of, self._rows = self.nodes_revision, self.capacity.rows()
        return self._rows

    def _holders(self) -> dict[str, Any]:
        rows = self.holders.rows(self._at, self.wall_offset)
        return {"nodes": rows, **self.residents.rows(self.wall_offset)}

    def _frame(
        self, topic: str, revision: int, body: dict[str, Any], backlog: dict[str, Any]
    ) -> Frame:
        self._seqs[topic] = seq = max(self._seqs[topic] + 1, int(self._at * 1000))
        wall = self._at + self.wall_offset
        return Frame(topic + self._suffix, seq, revision, self._at, wall, body, backlog)

    def _advance(self, at: float) -> None:
        self._at = max(self._at, at)
        second = int(self._at)
        flow = self.flow
        if flow.history.open_second is None:
            flow.begin(second)
        flow.skip_to(second)
        self.pasts.skip_to(second)
        while (flow.history.open_second or 0) < second:
            wall = int((flow.history.open_second or 0) + self.wall_offset)
            self._remember(wall)
            flow.seal(self._levels())
            self.pasts.seal(lambda project: self.population.project(project).counts(), wall)
            self.population.advance()

    def _levels(self) -> dict[str, float]:
        return {**self.population.everything.counts(), "cores": self.capacity.cores_of()[0]}

    def _remember(self, wall: int) -> None:
        """Keep the second that ends, which began at ``wall``."""
        self.rings.add(self.flow.moment(self._levels(), wall))
        self.scenes.look(wall, self.wall_offset, self.capacity, self.holders, self.residents)

    def _take(self, message: object) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            self._revision += 1
            handler(message)

    def _submit(self, event: ActionSubmitted) -> None:
        action = event.action
        if action.id in self.population.actions:
            return
        pool = self.origins.pool_of(action, self.capacity.config)
        self.population.submit(action, pool, event.at - event.lag_seconds)
        self.flow.submit()
        self.pasts.submit(action.project)
        if self._totals is not None and self._counting:
            self._totals.submit(action.project, pool, action.kind.value)

    def _grant(self, decision: Grant) -> None:
        live = self.population.actions.get(decision.action_id)
        if live is None:
            node = self.capacity.nodes.get(decision.node or "")
            pool = node.inventory.pool if node else "default"
            live = self.population.adopt(decision.action_id, pool, self._at)
        else:
            # The trainer itself does the work of a lease, from the grant on.
            leased = live.kind is Kind.LEASE
            self.population.move(live, ActionState.RUNNING if leased else ActionState.GRANTED)
        live.node, live.attempt = decision.node, decision.attempt
        self._hold(live, decision.allocations)
        self.residents.grant(live.node, decision.allocations, self._at)
        if self._totals is not None and self._counting:
            self._totals.host(live.pool, decision.allocations)
        if live.node and live.trajectory and live.kind is Kind.EXEC:
            self._place(trajectory_key(live.project, live.trajectory), live.node)

    def _prepare(self, decision: Prepare) -> None:
        self.residents.prepare(decision, self._at)
        node = self.capacity.nodes.get(decision.node)
        if self._totals is not None and self._counting and decision.awake:
            self._totals.bring(node.inventory.pool if node else "default")

    def _resize(self, decision: Resize) -> None:
        live = self.population.actions.get(decision.action_id)
        if live is not None and live.attempt == decision.attempt:
            self._release(live)
            self._hold(live, decision.allocations)
            if self._totals is not None and self._counting:
                self._totals.resize(live.pool)

    def _start(self, event: ActionStarted) -> None:
        live = self.population.actions.get(event.action_id)
        if (
            live is not None
            and live.state is ActionState.GRANTED
            and (live.node, live.attempt) == (event.node, event.attempt)
        ):
            self.population.move(live, ActionState.RUNNING)

    def _report(self, event: ActionFinished) -> None:
        live = self.population.actions.get(event.action_id)
        self.residents.report(event, live.allocations if live else (), self._at)
        if self._totals is not None and self._counting and live is not None and event.chunk:
            hosts = (each.hosting for each in live.allocations)
            if any(each.service and not each.cached for each in hosts if each is not None):
                self._totals.restore(live.pool, event.chunk.restore_seconds)
        node = self.capacity.nodes.get(event.node)
        if event.chunk is not None and event.chunk.stuck and node is not None:
            node.stuck.update(event.chunk.stuck)
            self.nodes_revision += 1

    def _requeue(self, decision: Requeue) -> None:
        live = self.population.actions.get(decision.action_id)
        if live is not None and live.state is not ActionState.QUEUED:
            self._release(live)
            self.population.move(live, ActionState.QUEUED)
            if self._totals is not None and self._counting:
                self._totals.requeue(live.pool)

    def _finish(self, decision: Finish) -> None:
        live = self.population.actions.get(decision.action_id)
        if live is not None:
            self._release(live)
            self.population.finish(live)
            self.pasts.finish(live.project, decision, self._at)
        self.flow.finish(decision, self._at)
        if self._totals is not None and self._counting:
            pool, kind = live.pool if live else "default", decision.kind.value
            self._totals.finish(decision.project, pool, kind, decision.outcome, decision.timing)
            if decision.used is not None:
                self._totals.use(pool, granted_cpu_seconds(decision), decision.used)

    def _hold(self, live: Live, allocations: tuple[Allocation, ...]) -> None:
        live.allocations = allocations
        self.capacity.hold(live.node, allocations)
        self.holders.take(live, self._at)
        self.nodes_revision += 1

    def _release(self, live: Live) -> None:
        if live.allocations:
            self.capacity.hold(live.node, live.allocations, by=-1)
            self.holders.drop(live)
            live.allocations = ()
            self.nodes_revision += 1

    def _join(self, event: NodeJoined) -> None:
        self.capacity.join(event.node)
        self.residents.join(event.node, self._at)
        self.nodes_revision += 1

    def _lose(self, event: NodeLost) -> None:
        self._show_life(event, lost=True)

    def _return(self, event: NodeReturned) -> None:
        self._show_life(event, lost=False)

    def _forget(self, decision: Forget) -> None:
        self.capacity.forget(decision.node)
        self.residents.forget(decision.node)
        self.nodes_revision += 1

    def _show_life(self, event: NodeLost | NodeReturned, *, lost: bool) -> None:
        node = self.capacity.nodes.get(event.node)
        if node is not None and node.inventory.incarnation == event.incarnation:
            node.lost = lost
            self.nodes_revision += 1

    def _configure(self, event: ConfigApplied) -> None:
        if event.config.revision >= self.capacity.config.revision:
            self.capacity.config = event.config
            self.nodes_revision += 1

    def _open_task(self, event: TaskOpened) -> None:
        if event.pool:
            self.origins.bind_task(task_key(event.project, event.task), event.pool)

    def _open_trajectory(self, event: TrajectoryOpened) -> None:
        task = task_key(event.project, event.task)
        pool = event.pool or self.origins.pool_of_task(task, event.project, self.capacity.config)
        key = trajectory_key(event.project, event.trajectory)
        self.origins.open_trajectory(key, pool, event.environment)

    def _close_trajectory(self, event: TrajectoryFinished) -> None:
        self.origins.close(trajectory_key(event.project, event.trajectory))

    def _transfer_file(self, decision: TransferFile) -> None:
        self._place(decision.trajectory, decision.node)

    def _place(self, key: TrajectoryKey, node: str) -> None:
        memory_bytes = self.origins.place(key)
        if memory_bytes is not None:
            self.capacity.place(key, node, memory_bytes)
            self.nodes_revision += 1

    def _remove_environment(self, event: EnvironmentRemoved) -> None:
        self.origins.forget(event.trajectory)
        self.capacity.remove_environment(event.trajectory)
        self.nodes_revision += 1
