"""Commands of the engines that serve workers of our own, with the flags that let them rank requests by priority.

Each flag is documented by its engine. Without ``--served-model-name`` an engine knows its model by the source, which is what routers name.

| engine | order of requests |
|---|---|
| vllm | ``--scheduling-policy priority``: lower first; a running request gives way only where the cache has no room |
| sglang | lower first; a threshold of 0 lets any greater difference preempt (its default is 10), and retraction follows priorities as well |
| torch | our own worker of `managers.gpu.torch_worker`, under the interpreter that the fleet declares: one after the other |
"""

from __future__ import annotations

from typing import Final

from domain.fleet_engines import filled
from domain.fleets import FleetEngine, FleetSpec

COMMANDS: Final[dict[FleetEngine, tuple[str, ...]]] = {
    FleetEngine.VLLM: (
        "vllm", "serve", "{source}", "--host", "{host}", "--port", "{port}",
        "--tensor-parallel-size", "{gpus}", "--max-num-seqs", "{slots}",
        "--scheduling-policy", "priority",
    ),
    FleetEngine.SGLANG: (
        "python3", "-m", "sglang.launch_server", "--model-path", "{source}",
        "--host", "{host}", "--port", "{port}",
        "--tensor-parallel-size", "{gpus}", "--max-running-requests", "{slots}",
        "--enable-priority-scheduling", "--schedule-low-priority-values-first",
        "--priority-scheduling-preemption-threshold", "0", "--retraction-policy", "priority",
    ),
    FleetEngine.TORCH: (
        "{python}", "-m", "managers.gpu.torch_worker", "--host", "{host}", "--port", "{port}",
        "--source", "{source}", "--model", "{source}", "--gpus", "{gpus}", "--awake",
    ),
}  # fmt: skip


def engine_command(fleet: str, spec: FleetSpec, slots: int) -> tuple[str, ...]:
    """Return the command of a worker with ``slots``, as far as it is known before its grant."""
    command = spec.command or COMMANDS[spec.engine]
    known = {"source": spec.source or fleet, "model": fleet, "slots": str(slots)}
    if spec.python:
        known["python"] = spec.python
    return filled(command, known)
