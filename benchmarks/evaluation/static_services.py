"""SGLang as ARL-Tangram deploys it: every model on GPUs of its own, for good (§6.1 "Baselines").

| behaviour | value | source |
|---|---|---|
| GPUs of an instance | 4 (`sglang(4)`), 8 (`sglang(8)`) | ARL-Tangram §6.1: TP 4 for MOPD, TP 8 for the judge |
| instances of a model | as many as all models can have alike | §6.1: nine models, one each; the judge alone has five |
| when not all models find a place | the first ones have one; calls of the others are refused | assumed; models are placed by number |
| calls of a model | to its instance with the shortest line | assumed, in its favour |
| loading | before the run | assumed, in its favour |

See `own_services` for what an instance does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.evaluation.model_servers import Instance, OwnServices
from simulator.baselines.unmanaged import UnmanagedCall
from simulator.cluster import Cluster
from simulator.gpus import GpuModel
from simulator.workloads.program import Workload

#: Baseline → GPUs of an instance.
RULES: Final = {"sglang(4)": 4, "sglang(8)": 8}


class StaticServices(OwnServices):
    """A workload on models that stay where they are."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        gpus: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(workload, cluster, progress)
        self.instances = place(cluster, gpus)

    def call(self, call: UnmanagedCall, model: GpuModel) -> None:
        """Let the least busy instance of ``model`` answer."""
        some = self.instances.get(model.name)
        if some:
            self.enqueue(call, min(some, key=lambda each: each.taken))
        else:
            self.refuse(call)


def place(cluster: Cluster, gpus: int) -> dict[str, list[Instance]]:
    """Return the instances of each model, with ``gpus`` GPUs each."""
    nodes = [node for node, has in enumerate(cluster.gpus_by_node()) for _ in range(has // gpus)]
    each = max(1, len(nodes) // max(1, len(cluster.models)))
    places = iter(nodes)
    return {
        name: [Instance(gpus, node) for _, node in zip(range(each), places, strict=False)]
        for name in cluster.models
    }
