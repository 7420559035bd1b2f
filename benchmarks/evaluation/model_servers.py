"""Model servers: the common part of baselines that serve models on GPUs. They do not manage API calls.

| behaviour | value | source |
|---|---|---|
| calls of APIs | as in `unmanaged` | ARL-Tangram §6.1 "Baselines" |
| an instance works on one call at a time, in order | | assumed: reading a prompt keeps a GPU busy, batching adds nothing; the same holds for us |
| a call takes T_ori / (E(m) · m) on an instance of m GPUs | the same profile as ours | assumed |
| a caller gives up | 600 s after it called | ARL-Tangram §6.1: "timeout after 600s" |
| a call of a model without a server | refused after 0.2 s | assumed |

Hops between processes cost nothing, in their favour. An instance is on GPUs of one node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from domain.action import Action, Outcome
from domain.errors import InvalidRequest
from domain.events import ActionSubmitted
from domain.resources import MILLI
from simulator.baselines.unmanaged import RULES, Unmanaged, UnmanagedCall
from simulator.cluster import Cluster
from simulator.gpus import GpuModel, model_of
from simulator.workloads.program import Workload

REFUSED_SECONDS: Final = 0.2
PATIENCE_SECONDS: Final = 600.0


class Instance:
    """A model on some GPUs, with a line of its own."""

    __slots__ = ("busy", "gpus", "line", "node")

    def __init__(self, gpus: int, node: int) -> None:
        self.gpus = gpus
        self.node = node
        self.busy = False
        self.line: deque[UnmanagedCall] = deque()

    @property
    def taken(self) -> int:
        """Number of its calls, the active one included."""
        return len(self.line) + self.busy


class OwnServices(Unmanaged, ABC):
    """Serves calls of models on GPUs somehow; subclasses say on which instances."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(workload, cluster, RULES["unmanaged"], progress)
        self.cluster = cluster
        #: Calls whose caller is gone, or has its answer.
        self._over: set[str] = set()

    @abstractmethod
    def call(self, call: UnmanagedCall, model: GpuModel) -> None:
        """Take a call of ``model``; `enqueue` it now or later, or `refuse` it."""

    def closed(self, call: UnmanagedCall) -> None:
        """``call`` is over: answered, or its caller is gone."""

    def worked(self, instance: Instance) -> None:
        """``instance`` is done with one call, and has not begun the next."""

    def refuse(self, call: UnmanagedCall) -> None:
        """Refuse a call of a model without a server."""
        self.agenda.at(self.agenda.now + REFUSED_SECONDS, self._end_early, call)

    def enqueue(self, call: UnmanagedCall, instance: Instance) -> None:
        """Let ``instance`` work on ``call`` when it is its turn."""
        instance.line.append(call)
        self._go_on(instance)

    def waits(self, call: UnmanagedCall) -> bool:
        """Return whether the caller still waits for the answer."""
        return call.event.action.id not in self._over

    def _submitted(self, event: ActionSubmitted) -> None:
        if "gpu" not in event.action.cost:
            super()._submitted(event)
            return
        call = UnmanagedCall(event, event.action.id)
        self.agenda.at(self.agenda.now + PATIENCE_SECONDS, self._end_early, call)
        self.call(call, self._model(event.action))

    def _model(self, action: Action) -> GpuModel:
        model = model_of(action, self.cluster.models)
        if model is None:
            raise InvalidRequest(f"{action.id} calls no model that the cluster knows")
        return model

    def _go_on(self, instance: Instance) -> None:
        while instance.line and not instance.busy:
            call = instance.line.popleft()
            if self.waits(call):
                instance.busy = True
                now = self.agenda.now
                work = self.trainers.act_of(call.event.action.id).work
                done_at = now + work.seconds(instance.gpus * MILLI)
                self.agenda.at(done_at, self._done, (call, instance, now))

    def _done(self, entry: tuple[UnmanagedCall, Instance, float]) -> None:
        call, instance, began_at = entry
        instance.busy = False
        held_seconds = self.agenda.now - began_at
        self.tally.held[f"gpu:n{instance.node:03d}"] += instance.gpus * MILLI * held_seconds
        if self.waits(call):  # else its caller has left meanwhile, and the work is lost
            self._close(call)
            self._finish(call, Outcome.COMPLETED, began_at)
        self.worked(instance)
        self._go_on(instance)

    def _end_early(self, call: UnmanagedCall) -> None:
        if self.waits(call):
            self._close(call)
            self._give_up(call)

    def _close(self, call: UnmanagedCall) -> None:
        self._over.add(call.event.action.id)
        self.closed(call)
