"""Kubernetes: one pod for each trajectory, for its whole life (ARL-Tangram §6.1 "Baselines").

| behaviour | value | source |
|---|---|---|
| a pod asks for 0.5 cores and may use 4 | | ARL-Tangram §6.1 |
| placed on the node with the least requested, by arrival; waits when none fits | | kube-scheduler's LeastAllocated |
| cores of a node | shared equally between runs, up to each pod's limit | CFS with equal requests |
| a test suite uses as many workers as its pod may use cores | 4 | assumed |
| creating a pod | 2 s after it was placed | assumed; Docker alone was measured at 0.53 s |
| a command in a pod | 84 ms | measured: ``docker exec``; the API server comes on top |
| deleting a pod frees its request | at once | assumed, in its favour |

A small copy of a cluster has so many pods together, and as many placed per second, as is its share of the larger one's.

Variants. `kubernetes` has neither a limit of pods nor of the control plane. `kubernetes(110)` has the defaults: 110 pods a
node, and 20 pods placed per second (assumed: its order of magnitude). Two add to it, each alone:

| variant | adds | value | source |
|---|---|---|---|
| `kubernetes(timeouts)` | a pod that waits for its place too long is given up, and asked for again | 60 s, then 10 s more each time, at most 300 s | §6.3 names queuing timeouts of the control plane at batch 1,536; the seconds are assumed |
| `kubernetes(memory)` | a pod asks for the memory of its environment; a node places pods up to its memory | as the workload declares | kube-scheduler's NodeResourcesFit |

Queue time is the wait for the pod; it is what trajectories meet once, at their first action.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from domain.action import Action, Kind, Outcome, Timing
from domain.decisions import Finish
from domain.errors import InvalidRequest
from domain.events import ActionSubmitted, Event, TrajectoryFinished
from domain.ids import TrajectoryKey, trajectory_key
from domain.resources import MILLI
from simulator.agenda import Agenda
from simulator.baselines.shared_node import SharedNode, SharedRun
from simulator.cluster import Cluster
from simulator.overheads import NONE
from simulator.tally import SimulationTally
from simulator.trainers import Trainers
from simulator.workloads.program import Workload


@dataclass(frozen=True)
class PodRules:
    """See the table above."""

    request_milli: int = MILLI // 2
    limit_milli: int = 4 * MILLI
    pods_per_node: int | None = None
    placed_per_second: float | None = None
    create_seconds: float = 2.0
    exec_seconds: float = 0.084
    #: A pod that waits for its place longer is given up; None: never.
    pending_seconds: float | None = None
    #: Wait before a pod that was given up is asked for again, more by it each time.
    again_seconds: float = 10.0
    most_again_seconds: float = 300.0
    #: Pods ask for the memory of their environments.
    memory: bool = False

    def on(self, cluster: Cluster) -> PodRules:
        """Return the rules of a cluster, which may be a small copy of another one."""
        larger = cluster.stands_for
        if larger is None:
            return self
        pods, placed = self.pods_per_node, self.placed_per_second
        if pods is not None:
            pods = max(1, round(pods * larger.nodes * larger.share / cluster.nodes))
        if placed is not None:
            placed *= larger.share
        return replace(self, pods_per_node=pods, placed_per_second=placed)


RULES: Final = {
    "kubernetes": PodRules(),
    "kubernetes(110)": PodRules(pods_per_node=110, placed_per_second=20.0),
    "kubernetes(timeouts)": PodRules(
        pods_per_node=110, placed_per_second=20.0, pending_seconds=60.0
    ),
    "kubernetes(memory)": PodRules(pods_per_node=110, placed_per_second=20.0, memory=True),
}


@dataclass
class Pod:
    """A trajectory's pod. Actions that come before it is ready wait."""

    node: int | None = None
    ready: bool = False
    waiting: list[ActionSubmitted] | None = None
    memory_bytes: int = 0
    #: Times that it was given up.
    tries: int = 0


class Kubernetes:
    """A workload on a cluster under Kubernetes; runs as `simulator.engine.ClusterSimulation` does."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rules: PodRules,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.agenda = Agenda()
        self.tally = SimulationTally()
        self.trainers = Trainers(workload, self.agenda, NONE, self._tell)
        self.passes = self.events = 0
        self._rules = rules.on(cluster)
        self._capacity_milli = cluster.cores * MILLI
        self._nodes = [SharedNode(self.agenda, self._capacity_milli) for _ in range(cluster.nodes)]
        self._pods_on = [0] * cluster.nodes
        self._memory_bytes = _memory_of_node(cluster)
        self._memory_on = [0] * cluster.nodes
        self._pods: dict[TrajectoryKey, Pod] = {}
        self._pending: deque[TrajectoryKey] = deque()
        self._placing_from = 0.0
        self._progress = progress

    def run(self) -> SimulationTally:
        """Play the whole workload."""
        self.agenda.at(0.0, self.trainers.begin)
        while not self.trainers.over and self.agenda.advance():
            pass
        for number, node in enumerate(self._nodes):
            self.tally.held[f"cpu:n{number:03d}"] = node.used
        return self.tally

    def _tell(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, ActionSubmitted):
            self._submitted(event)
        elif isinstance(event, TrajectoryFinished):
            self._delete_pod(trajectory_key(event.project, event.trajectory))

    def _submitted(self, event: ActionSubmitted) -> None:
        key = event.action.trajectory_key
        if key is None or event.action.kind is not Kind.EXEC:
            raise InvalidRequest("kubernetes: every action must be a command of a trajectory")
        pod = self._pods.get(key)
        if pod is None:
            environment = event.action.environment
            memory = environment.memory_bytes if environment and self._rules.memory else 0
            self._pods[key] = Pod(waiting=[event], memory_bytes=memory or 0)
            self._ask(key)
        elif pod.ready:
            self._execute(pod, event)
        elif pod.waiting is not None:
            pod.waiting.append(event)

    def _ask(self, key: TrajectoryKey) -> None:
        """Ask for a pod's place; give up after a while, where the rules say so."""
        if key not in self._pods:
            return  # its trajectory has ended
        self._pending.append(key)
        self._place()
        limit = self._rules.pending_seconds
        if limit is not None and self._pods[key].node is None:
            self.agenda.at(self.agenda.now + limit, self._give_up, key)

    def _give_up(self, key: TrajectoryKey) -> None:
        pod = self._pods.get(key)
        if pod is None or pod.node is not None:
            return
        self._pending.remove(key)
        pod.tries += 1
        again = min(self._rules.most_again_seconds, self._rules.again_seconds * pod.tries)
        self.agenda.at(self.agenda.now + again, self._ask, key)

    def _place(self, _: object = None) -> None:
        """Place pending pods while there is room and the control plane keeps up."""
        rules, now = self._rules, self.agenda.now
        while self._pending:
            pod = self._pods[self._pending[0]]
            fitting = [node for node in range(len(self._nodes)) if self._fits(node, pod)]
            if not fitting:
                return
            node = min(fitting, key=self._pods_on.__getitem__)
            if now < self._placing_from:
                self.agenda.at(self._placing_from, self._place)
                return
            if rules.placed_per_second is not None:
                self._placing_from = now + 1 / rules.placed_per_second
            key = self._pending.popleft()
            self._pods[key].node = node
            self._pods_on[node] += 1
            self._memory_on[node] += self._pods[key].memory_bytes
            self.agenda.at(now + rules.create_seconds, self._ready, key)

    def _fits(self, node: int, pod: Pod) -> bool:
        count, most = self._pods_on[node] + 1, self._rules.pods_per_node
        fits = count * self._rules.request_milli <= self._capacity_milli
        fits = fits and self._memory_on[node] + pod.memory_bytes <= self._memory_bytes
        return fits and (most is None or count <= most)

    def _ready(self, key: TrajectoryKey) -> None:
        pod = self._pods[key]
        pod.ready, waiting, pod.waiting = True, pod.waiting or [], None
        for event in waiting:
            self._execute(pod, event)

    def _execute(self, pod: Pod, event: ActionSubmitted) -> None:
        action, node = event.action, pod.node
        assert node is not None  # it is ready
        work = self.trainers.act_of(action.id).work
        most = action.cost.get("cpu", (MILLI,))[-1]
        cap = min(self._rules.limit_milli, most)
        queue_seconds = self.agenda.now - event.accepted_at
        run = SharedRun(work, cap, partial(self._done, action, event.accepted_at, queue_seconds))
        self.agenda.at(self.agenda.now + self._rules.exec_seconds, self._nodes[node].begin, run)

    def _done(
        self, action: Action, submitted_at: float, queue_seconds: float, run: SharedRun
    ) -> None:
        now = self.agenda.now
        execution = now - run.began_at
        timing = Timing(queue_seconds, self._rules.exec_seconds, execution, now - submitted_at)
        finish = Finish(
            action_id=action.id, project=action.project, task=action.task,
            outcome=Outcome.COMPLETED, timing=timing, trajectory=action.trajectory,
        )  # fmt: skip
        self.tally.finish(finish, action.family or "exec", run.work.base_seconds, now)
        self.tally.useful_core_seconds += run.work.base_seconds
        self.trainers.finished(finish)
        if self._progress is not None and not len(self.tally.rows) % 500:
            self._progress(len(self.tally.rows))

    def _delete_pod(self, key: TrajectoryKey) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None and pod.node is not None:
            self._pods_on[pod.node] -= 1
            self._memory_on[pod.node] -= pod.memory_bytes
            self._place()


def _memory_of_node(cluster: Cluster) -> int:
    larger = cluster.stands_for
    if larger is None:
        return cluster.memory_bytes
    return round(cluster.memory_bytes * larger.nodes * larger.share / cluster.nodes)
