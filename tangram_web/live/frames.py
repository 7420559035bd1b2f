"""Fold of the journal into frames: the state that a live page shows, several times a second.

Theory of operation. `FrameFold.fold` updates counts, holdings and durations, a few microseconds for
each event; `FrameFold.frames` renders them, some hundred microseconds, four times a second whatever
the load. Of a finished action only its counts remain and, for the newest twenty, a row: memory is
bounded by open actions, nodes, projects and open trajectories. A restarted fold is filled from the
retained journal.

A frame carries the whole state of its topic, so a reader may miss any of them. Only the points of
charts are increments: a frame repeats the newest `FRAME_POINTS` seconds, a snapshot has all.

What the journal no longer holds is not invented: an action whose submission was trimmed is known
from its grant on, without a task. Units that a silent node keeps for abandoned actions count as
free here; the node itself is shown as lost.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from domain.action import ActionState, Kind
from domain.allocation import Allocation
from domain.codec import JournalEntry
from domain.decisions import (
    AssignRollout,
    EndMove,
    Evict,
    Finish,
    FinishRollout,
    Forget,
    ForkEnvironment,
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
    EnvironmentsForked,
    NodeJoined,
    NodeLost,
    NodeRefuses,
    NodeReturned,
    ServicePrepared,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import ActionId, TrajectoryKey, task_key, trajectory_key
from domain.journal_reducer import JournalReducer, on
from domain.rollout_events import RolloutsSubmitted
from tangram_web.lib.endings import exit_code_of
from tangram_web.live.capacity import Capacity
from tangram_web.live.family_times import CommandFamilies
from tangram_web.live.gpu_history import GpuHistory
from tangram_web.live.holders import Holders
from tangram_web.live.losses import REQUEUED
from tangram_web.live.open_actions import (
    RATE_SECONDS,
    OpenAction,
    OpenActions,
    OpenTrajectories,
)
from tangram_web.live.overview_rows import pool_rows, wait_seconds, waiting_row, wanted_rows
from tangram_web.live.residents import GpuResidents
from tangram_web.live.rollups.projects import MAX_RECENT, ProjectActivity
from tangram_web.live.rollups.recent import (
    CHART_SECONDS,
    FRAME_POINTS,
    WINDOW_SECONDS,
    RecentActivity,
)
from tangram_web.live.rollups.rollup import Rollup, RollupBuilder
from tangram_web.live.task_endings import TaskEndings
from tangram_web.live.topics import HOLDERS, NODES, OVERVIEW, TOPICS, TopicFrame
from tangram_web.metrics.totals import MOVED, STAYED, Totals, granted_cpu_seconds

#: Actions that wait longest, as rows.
MAX_WAITING: Final = 20
_DEFAULT_POOL: Final = "default"


class FrameFold(JournalReducer):
    """State of the whole system, folded from the journal."""

    def __init__(self, totals: Totals | None = None, recent_projects: int = MAX_RECENT) -> None:
        super().__init__()
        #: Counters of the metrics; entries that they contain already are counted into `_discarded`.
        self._metrics = Totals() if totals is None else totals
        self._discarded = Totals()
        self._totals = self._metrics
        self.open_actions = OpenActions()
        self.trajectories = OpenTrajectories()
        self.capacity = Capacity()
        self.holders = Holders()
        self.residents = GpuResidents()
        self.recent = RecentActivity()
        self.project_activity = ProjectActivity(self.recent, recent_projects)
        self.rollups = RollupBuilder()
        self.gpu_history = GpuHistory()
        self.task_endings = TaskEndings()
        #: Replaced by the fold whose times are stored.
        self.family_times = CommandFamilies()
        self._at = 0.0
        self.wall_offset = 0.0
        #: Wall clock at the oldest entry.
        self._since: float | None = None
        #: Ends the names of its topics.
        self._suffix = ""
        self._revision = 0
        self.nodes_revision = 0
        #: The newest rows of nodes, and the revision that they show.
        self._rows: list[dict[str, Any]] = []
        self._rows_revision = -1
        self._seqs = dict.fromkeys(TOPICS, 0)

    def fold(self, entry: JournalEntry, *, counted: bool = False) -> None:
        """Fold one entry; ``counted``: the metrics contain it already."""
        self._totals = self._discarded if counted else self._metrics
        self.reduce(entry)

    def begin(self, entry: JournalEntry) -> None:
        """Advance to the time of ``entry``."""
        self.wall_offset = entry.wall_offset_seconds
        if self._since is None:
            self._since = entry.at + entry.wall_offset_seconds
        self._advance(entry.at)

    def reduce(self, entry: JournalEntry) -> None:
        """Fold one entry; each event and decision that is taken changes the revision."""
        if self._takes_part:
            super().reduce(entry)
            return
        self.begin(entry)
        handlers = self._handlers
        for fact in chain(entry.events, entry.decisions):
            if (handler := handlers.get(type(fact))) is not None:
                self._revision += 1
                handler(fact)

    def journal_time(self, wall_seconds: float) -> float:
        """Return the journal time at a reading of the wall clock, never before the newest entry."""
        return max(self._at, wall_seconds - self.wall_offset)

    def frames(self, at: float) -> dict[str, TopicFrame]:
        """Return the frame of each topic at journal time ``at``."""
        self._advance(at)
        overview, nodes, holders = self._overview(), {"nodes": self.node_rows()}, self._holders()
        backlog = {"points": self.recent.points(CHART_SECONDS)}
        held = self.holders.revision + self.residents.revision
        frames = (
            self._frame(OVERVIEW, self._revision, overview, backlog),
            self._frame(NODES, self.nodes_revision, nodes, {}),
            self._frame(HOLDERS, held, holders, {}),
        )
        return {frame.topic: frame for frame in frames}

    def node_rows(self) -> list[dict[str, Any]]:
        """Return one row per node, rebuilt after a change on any of them."""
        if self._rows_revision != self.nodes_revision:
            self._rows_revision, self._rows = self.nodes_revision, self.capacity.rows()
        return self._rows

    def _overview(self) -> dict[str, Any]:
        held, total = self.capacity.cores_of()
        oldest = self.open_actions.everything.oldest(MAX_WAITING)
        return {
            "counts": self.open_actions.everything.counts(),
            "submitted_per_second": self.recent.rate("submitted", RATE_SECONDS),
            "finished_per_second": self.recent.rate("finished", RATE_SECONDS),
            "oldest_seconds": wait_seconds(oldest, self._at),
            "cores": {"held": held, "total": total, "lost": self.capacity.lost_cores()},
            "durations": self.recent.durations(),
            "outcomes": self.recent.outcomes(),
            "pools": pool_rows(self.open_actions, self.capacity, self._at),
            "resources": self.capacity.cluster_resources(),
            "wanted": wanted_rows(self.open_actions, self._at),
            "failing": self.task_endings.rows(self._at, self.wall_offset),
            "slow": self.family_times.rows(self._at),
            "restores": self.residents.restores_since(self._at - WINDOW_SECONDS),
            "quarantined": self.capacity.quarantined(),
            "waiting": [waiting_row(action, self._at, self.wall_offset) for action in oldest],
            "finished": self.recent.finished(self.wall_offset),
            "since": self._since,
            "points": self.recent.points(FRAME_POINTS),
        }

    def _holders(self) -> dict[str, Any]:
        rows = self.holders.rows(self._at, self.wall_offset)
        return {"nodes": rows, **self.residents.rows(self.wall_offset)}

    def _frame(
        self, topic: str, revision: int, body: dict[str, Any], backlog: dict[str, Any]
    ) -> TopicFrame:
        self._seqs[topic] = seq = max(self._seqs[topic] + 1, int(self._at * 1000))
        wall = self._at + self.wall_offset
        return TopicFrame(topic + self._suffix, seq, revision, self._at, wall, body, backlog)

    def _advance(self, at: float) -> None:
        self._at = max(self._at, at)
        second = int(self._at)
        if self.recent.open_second is None:
            self.recent.begin(second)
        self.recent.skip_to(second)
        self.project_activity.skip_to(second)
        while (open_second := self.recent.open_second or 0) < second:
            wall = int(open_second + self.wall_offset)
            self._record(self.recent.close_second(self._levels(), wall))
            self.project_activity.close_second(
                lambda project: self.open_actions.of_project(project).counts(), wall
            )
            self.open_actions.close_second()

    def _levels(self) -> dict[str, float]:
        return {**self.open_actions.everything.counts(), "cores": self.capacity.cores_of()[0]}

    def _record(self, second: Rollup) -> None:
        """Add a closed second to the history that is stored."""
        self.rollups.add(second)
        self.gpu_history.record(
            second.at, self.wall_offset, self.capacity, self.holders, self.residents
        )

    @on(ActionSubmitted)
    def _submit(self, event: ActionSubmitted) -> None:
        action = event.action
        if action.id in self.open_actions.by_id:
            return
        pool = self.trajectories.pool_of(action, self.capacity.config)
        self.open_actions.submit(action, pool, event.at - event.lag_seconds)
        self.recent.submit()
        self.project_activity.submit(action.project)
        self._totals.count_submitted(action.project, pool, str(action.kind))

    @on(Grant)
    def _grant(self, decision: Grant) -> None:
        action = self.open_actions.by_id.get(decision.action_id)
        if action is None:
            action = self.open_actions.adopt(
                decision.action_id, self._pool_of(decision.node), self._at
            )
        else:
            # The trainer itself does the work of a lease, from the grant on.
            leased = action.kind is Kind.LEASE
            self.open_actions.move(action, ActionState.RUNNING if leased else ActionState.GRANTED)
        self.open_actions.place(action, decision.node, decision.attempt)
        if decision.allocations:
            self._hold(action, decision.allocations)
            self.residents.grant(action.node, decision.allocations, self._at)
            self._totals.count_service_grant(action.pool, decision.allocations)
        if action.node and action.trajectory and action.kind is Kind.EXEC:
            key = trajectory_key(action.project, action.trajectory)
            self._place_environment(key, action.node)

    @on(Evict)
    def _evict(self, decision: Evict) -> None:
        self.residents.evict(decision, self._at)

    @on(Prepare)
    def _prepare(self, decision: Prepare) -> None:
        self.residents.prepare(decision, self._at)
        if decision.awake:
            self._totals.count_restore_ahead(self._pool_of(decision.node))

    @on(ServicePrepared)
    def _prepared(self, event: ServicePrepared) -> None:
        self.residents.prepared(event, self._at)

    @on(Resize)
    def _resize(self, decision: Resize) -> None:
        action = self.open_actions.by_id.get(decision.action_id)
        if action is not None and action.attempt == decision.attempt:
            self._release(action)
            self._hold(action, decision.allocations)
            self._totals.count_resized(action.pool)

    @on(ActionStarted)
    def _start(self, event: ActionStarted) -> None:
        action = self.open_actions.by_id.get(event.action_id)
        if (
            action is not None
            and action.state is ActionState.GRANTED
            and (action.node, action.attempt) == (event.node, event.attempt)
        ):
            self.open_actions.move(action, ActionState.RUNNING)

    @on(ActionFinished)
    def _report(self, event: ActionFinished) -> None:
        action = self.open_actions.by_id.get(event.action_id)
        self.residents.report(event, action.allocations if action else (), self._at)
        if action is not None and action.attempt == event.attempt:
            action.usage, action.exit_code = event.usage, exit_code_of(event.result)
        if event.chunk is None:
            return
        if action is not None:
            hosts = (each.hosting for each in action.allocations)
            if any(each.service and not each.cached for each in hosts if each is not None):
                self._totals.count_restore(action.pool, event.chunk.restore_seconds)
        node = self.capacity.nodes.get(event.node)
        if event.chunk.stuck and node is not None:
            node.stuck.update(event.chunk.stuck)
            self.nodes_revision += 1

    @on(Requeue)
    def _requeue(self, decision: Requeue) -> None:
        action = self.open_actions.by_id.get(decision.action_id)
        self._settle(decision.action_id, REQUEUED)
        if action is not None and action.state is not ActionState.QUEUED:
            self._release(action)
            self.open_actions.move(action, ActionState.QUEUED)
            action.usage = action.exit_code = None
            self._totals.count_requeued(action.pool)

    @on(Finish)
    def _finish(self, decision: Finish) -> None:
        action = self.open_actions.by_id.get(decision.action_id)
        self._settle(decision.action_id, decision.outcome.value)
        if action is not None:
            self._release(action)
            self.open_actions.finish(action)
            self.project_activity.finish(action.project, decision, self._at, action.exit_code)
            if action.family is not None:
                self.family_times.finish(decision, action.family, self._at)
            if action.cost and (fleet := action.fleet):
                self._totals.count_generation(fleet, decision.outcome, action.usage)
        exit_code = action.exit_code if action else None
        self.recent.finish(decision, self._at, exit_code)
        self.task_endings.finish(decision, self._at, exit_code)
        pool, kind = action.pool if action else _DEFAULT_POOL, str(decision.kind)
        self._totals.count_finished(decision.project, pool, kind, decision.outcome, decision.timing)
        if decision.used is not None:
            self._totals.count_usage(pool, granted_cpu_seconds(decision), decision.used)

    @on(RolloutsSubmitted)
    def _submit_rollouts(self, event: RolloutsSubmitted) -> None:
        for rollout in event.rollouts:
            self._totals.count_rollout_submitted(rollout.project)

    @on(AssignRollout)
    def _assign_rollout(self, decision: AssignRollout) -> None:
        self._totals.count_rollout_assigned(decision.rollout.project, decision.attempt)

    @on(FinishRollout)
    def _finish_rollout(self, decision: FinishRollout) -> None:
        self._totals.count_rollout(decision)
        self.task_endings.finish_rollout(decision, self._at)

    def _pool_of(self, name: str | None) -> str:
        node = self.capacity.nodes.get(name or "")
        return node.inventory.pool if node else _DEFAULT_POOL

    def _hold(self, action: OpenAction, allocations: tuple[Allocation, ...]) -> None:
        action.allocations = allocations
        self.capacity.hold(action.node, allocations)
        self.holders.add(action, self._at)
        self.nodes_revision += 1

    def _release(self, action: OpenAction) -> None:
        if action.allocations:
            self.capacity.hold(action.node, action.allocations, by=-1)
            self.holders.remove(action)
            action.allocations = ()
            self.nodes_revision += 1

    def _settle(self, action_id: ActionId, fate: str) -> None:
        """Count what became of an action that a lost node held."""
        if self.capacity.losses.settle(action_id, fate):
            self.nodes_revision += 1

    @on(NodeJoined)
    def _join(self, event: NodeJoined) -> None:
        self.capacity.losses.returns(event.node.name, self._at + self.wall_offset)
        self.capacity.join(event.node)
        self.residents.join(event.node, self._at)
        self.nodes_revision += 1

    @on(NodeLost, NodeReturned)
    def _change_state(self, event: NodeLost | NodeReturned) -> None:
        node = self.capacity.nodes.get(event.node)
        if node is not None and node.inventory.incarnation == event.incarnation:
            lost, wall = isinstance(event, NodeLost), self._at + self.wall_offset
            if lost and not node.lost:
                self._lose(event.node, wall)
            elif not lost:
                self.capacity.losses.returns(event.node, wall)
            node.lost = lost
            self.nodes_revision += 1

    def _lose(self, name: str, wall: float) -> None:
        """Keep what a node held when it was lost."""
        actions = self.open_actions.on_node(name)
        environments = self.capacity.environments.on(name)
        grace = self.capacity.config.grace_of(self._pool_of(name))
        self.capacity.losses.lose(name, actions, environments, wall, grace)

    @on(NodeRefuses)
    def _refuse(self, event: NodeRefuses) -> None:
        node = self.capacity.nodes.get(event.node)
        if node is not None and node.inventory.incarnation == event.incarnation:
            node.refuses = event.reason
            self.nodes_revision += 1

    @on(Forget)
    def _forget(self, decision: Forget) -> None:
        self.capacity.forget(decision.node)
        self.residents.forget(decision.node)
        self.nodes_revision += 1

    @on(ConfigApplied)
    def _configure(self, event: ConfigApplied) -> None:
        if event.config.revision >= self.capacity.config.revision:
            self.capacity.config = event.config
            self.nodes_revision += 1

    @on(TaskOpened)
    def _open_task(self, event: TaskOpened) -> None:
        if event.pool:
            self.trajectories.bind_task(task_key(event.project, event.task), event.pool)

    @on(TrajectoryOpened)
    def _open_trajectory(self, event: TrajectoryOpened) -> None:
        task = task_key(event.project, event.task)
        pool = event.pool or self.trajectories.pool_of_task(
            task, event.project, self.capacity.config
        )
        key = trajectory_key(event.project, event.trajectory)
        self.trajectories.open(key, pool, event.environment)

    @on(TrajectoryFinished)
    def _finish_trajectory(self, event: TrajectoryFinished) -> None:
        self.trajectories.finish(trajectory_key(event.project, event.trajectory))

    @on(TransferFile)
    def _transfer_file(self, decision: TransferFile) -> None:
        self._place_environment(decision.trajectory, decision.node)

    @on(ForkEnvironment)
    def _fork_environment(self, decision: ForkEnvironment) -> None:
        for child in decision.children:
            self.trajectories.open(child, decision.pool, decision.environment)
            self._place_environment(child, decision.node)

    @on(EnvironmentsForked)
    def _end_fork(self, event: EnvironmentsForked) -> None:
        for child in event.children if event.failed else ():
            self.trajectories.remove_environment(child)
            self.capacity.environments.remove(child)
            self.nodes_revision += 1

    def _place_environment(self, key: TrajectoryKey, node: str) -> None:
        memory_bytes = self.trajectories.place_environment(key)
        if memory_bytes is not None:
            self.capacity.environments.place(key, node, memory_bytes)
            self.nodes_revision += 1

    @on(EndMove)
    def _move_environment(self, decision: EndMove) -> None:
        if decision.node == decision.lives_on:
            self._totals.count_move(self._pool_of(decision.node), STAYED)
        if decision.has_moved:
            self._totals.count_move(self._pool_of(decision.node), MOVED)
            self.capacity.environments.move(decision.trajectory, decision.lives_on)
            self.nodes_revision += 1

    @on(EnvironmentRemoved)
    def _remove_environment(self, event: EnvironmentRemoved) -> None:
        if event.copied:
            return
        self.trajectories.remove_environment(event.trajectory)
        self.capacity.environments.remove(event.trajectory)
        self.nodes_revision += 1
