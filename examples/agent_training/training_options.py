"""Options of a training run, and the parts of Tangram that a run may leave out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from examples.agent_training import note_task

#: Part → what stands in for it when it is left out.
PARTS: Final[dict[str, str]] = {
    "elastic": "test cases run on one core each, whatever is free",
    "placement": "engines are registered backends, chosen by free seats alone",
    "dispatcher": "rank 0 gathers all rows and scatters them",
    "rollout-service": "the trainer runs its agents itself, a whole batch at a time",
    "selector": "engines stay on one rank each, whatever the contexts are",
}


@dataclass(frozen=True)
class TrainingOptions:
    """What a run is asked to do."""

    #: Folder of checkpoints and of the log of steps.
    folder: Path
    name: str = "train-agent"
    ranks: int = 4
    engines: int = 2
    seed: int = 0
    #: A run ends after so many steps or so much time, whichever is first.
    steps: int = 1000
    seconds: float = 1800.0
    #: Informative groups of a step, and rollouts of each group.
    prompts: int = 8
    samples: int = 8
    rate: float = 1e-3
    #: Weight of the distance from the reference model.
    reference_weight: float = 0.001
    #: Conversations of the teacher that are imitated, and passes over them.
    taught: int = 600
    #: After six passes the model reads half as often as the teacher, but copies only a third of the notes' names; after sixteen nearly all of them.
    epochs: int = 16
    #: Instances that measure the agent before and after; 0: none.
    measured: int = 96
    #: Prompts after which instances get one hop longer.
    growth: int = 96
    #: Context lengths at which each degree of the engines is measured; the last one is the model's.
    contexts: tuple[int, ...] = (256, 512, 640, 768, 896, note_task.CONTEXT)
    #: Memory of each rank of an engine, as a GPU has it; 0: no limit.
    rank_memory_bytes: int = 0
    without: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if unknown := self.without - PARTS.keys():
            raise ValueError(
                f"without: {sorted(unknown)[0]!r} is no part; there are {', '.join(PARTS)}"
            )
        for name in ("ranks", "engines", "prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: give at least 1")
        if not self.contexts or self.contexts[-1] != note_task.CONTEXT:
            raise ValueError(f"contexts: the last one is the model's, {note_task.CONTEXT}")
        if self.samples < 2:
            raise ValueError("samples: give at least 2, one reward has nothing to differ from")

    @property
    def at_once(self) -> int:
        """Rollouts that are sampled at once: those of a step, and half as many in reserve."""
        return self.prompts * self.samples * 3 // 2

    @property
    def slots(self) -> int:
        """Rollouts that one engine samples at once."""
        return -(-self.at_once // self.engines)

    def uses(self, part: str) -> bool:
        """Whether a part of Tangram is used."""
        return part not in self.without
