"""ServerlessLLM: models that are loaded when they are called, by loops that sleep.

| behaviour | value | source |
|---|---|---|
| one line for each model; its head is dispatched, then the next | after 1 s, each time | `_load_balancer_loop` of its round-robin router sleeps 1 s before it looks for an instance, also when one is ready |
| an instance takes | 10 calls; a further one waits 2 s before the next try | the same loop; `max_queue_length=10` |
| choice of an instance | round robin over those that are ready | the same loop |
| wished instances | open calls / 2, rounded up, at most 10 | its auto scaler with the defaults, `target` 2 |
| scaling | each second one instance more or one less, the youngest ready one | `_auto_scaler_loop`, `keep_alive` 0 |
| an instance that is stopped | finishes what it has | assumed; its documentation promises no less |
| GPUs of an instance | 4, fixed; on a node that has so many free, by arrival | TP as for SGLang; its FCFS scheduler counts free GPUs of nodes |
| loading | as fast as our restores | assumed, in its favour: starting a process and an engine is not counted |

No model is evicted for another one: it is unloaded when it has no calls. See `model_servers` for what an
instance does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.evaluation.model_servers import Instance, OwnServices
from simulator.baselines.unmanaged import UnmanagedCall
from simulator.cluster import Cluster
from simulator.gpus import GpuModel
from simulator.workloads.program import Workload

NAME: Final = "serverlessllm"
GPUS: Final = 4
LOOP_SECONDS: Final = 1.0
TAKES: Final = 10
TARGET: Final = 2
MOST_INSTANCES: Final = 10


@dataclass
class Router:
    """One model's: its line, its instances, and how often it dispatched."""

    model: GpuModel
    line: deque[UnmanagedCall] = field(default_factory=deque)
    ready: list[Instance] = field(default_factory=list)
    #: Asked for, waiting for GPUs or loading.
    starting: int = 0
    #: Calls without an answer.
    open: int = 0
    turn: int = 0
    dispatching: bool = False
    scaling: bool = False


class ServerlessLlm(OwnServices):
    """A workload on models that come and go."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(workload, cluster, progress)
        self._routers = {name: Router(model) for name, model in cluster.models.items()}
        self._room = cluster.gpus_by_node()
        #: Routers that wait for GPUs, by arrival.
        self._asking: deque[Router] = deque()
        #: Instances that are stopped and still have calls.
        self._stopping: set[Instance] = set()

    def call(self, call: UnmanagedCall, model: GpuModel) -> None:
        """Put a call into its model's line, and let both loops of that model run."""
        router = self._routers[model.name]
        router.line.append(call)
        router.open += 1
        if not router.dispatching:
            router.dispatching = True
            self.agenda.at(self.agenda.now + LOOP_SECONDS, self._dispatch, router)
        if not router.scaling:
            router.scaling = True
            self._scale(router)

    def closed(self, call: UnmanagedCall) -> None:
        """One call less is open."""
        self._routers[self._model(call.event.action).name].open -= 1

    def worked(self, instance: Instance) -> None:
        """Let a stopped instance go that has nothing left to do."""
        if instance in self._stopping and not instance.line:
            self._stopping.remove(instance)
            self._release(instance)

    def _dispatch(self, router: Router) -> None:
        """Give the head of the line to a ready instance, after having slept."""
        line, pause_seconds = router.line, LOOP_SECONDS
        while line and not self.waits(line[0]):
            line.popleft()
        if line and router.ready:
            instance = router.ready[router.turn % len(router.ready)]
            router.turn += 1
            if instance.taken < TAKES:
                self.enqueue(line.popleft(), instance)
            else:
                pause_seconds += LOOP_SECONDS
        router.dispatching = bool(line)
        if line:
            self.agenda.at(self.agenda.now + pause_seconds, self._dispatch, router)

    def _scale(self, router: Router) -> None:
        """Ask for one instance more, or stop one, as open calls say."""
        wished = min(MOST_INSTANCES, -(-router.open // TARGET))
        have = router.starting + len(router.ready)
        if wished > have:
            router.starting += 1
            self._asking.append(router)
            self._load()
        elif wished < have and router.ready:
            self._stop(router.ready.pop())
        router.scaling = bool(router.open or have)
        if router.scaling:
            self.agenda.at(self.agenda.now + LOOP_SECONDS, self._scale, router)

    def _load(self) -> None:
        """Load models in order of their oldest calls, while a node has room."""
        while self._asking:
            node = next((n for n, free in enumerate(self._room) if free >= GPUS), None)
            if node is None:
                return
            router = self._asking.popleft()
            self._room[node] -= GPUS
            ready_at = self.agenda.now + router.model.restore_seconds(GPUS)
            self.agenda.at(ready_at, self._begin, (router, Instance(GPUS, node)))

    def _begin(self, entry: tuple[Router, Instance]) -> None:
        router, instance = entry
        router.starting -= 1
        router.ready.append(instance)

    def _stop(self, instance: Instance) -> None:
        if instance.taken:
            self._stopping.add(instance)
        else:
            self._release(instance)

    def _release(self, instance: Instance) -> None:
        self._room[instance.node] += instance.gpus
        self._load()
