"""A training run with real ranks and fixed rows, which ends itself where it is asked to. For tests of what a crash leaves.

    python -m tests.fixed_training RUN --steps 4 --end push:2        # kills itself when it is about to push version 2

What the run did is in ``RUN/did.jsonl``: pushes and acknowledgements, as engines and Tangram would see them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from examples.agent_training.checkpoints import (
    WEIGHTS,
    Checkpoint,
    CheckpointFacts,
    CheckpointStore,
)
from examples.agent_training.rank_group import ROOT, TORCH_PYTHON, RankGroup
from examples.agent_training.row_blocks import RowFacts, block_of
from examples.agent_training.training_loop import RolloutBatch, TrainingLoop
from examples.agent_training.training_options import TrainingOptions

#: Kills the process when it comes to an event and step.
Killer = Mapping[str, int]


class FixedRollouts:
    """Batches that depend on their position alone; a source that continues from a state returns the same ones."""

    def __init__(self, did: Path, state: Mapping[str, Any] | None, end: Killer) -> None:
        self._did, self._end = did, end
        self._position = int((state or {}).get("position", 0))

    def batch(self) -> RolloutBatch:
        """Return the rows of the next position: two groups of three rollouts."""
        self._position += 1
        chance = random.Random(self._position)
        facts: list[RowFacts] = []
        rows: list[dict[str, Sequence[float]]] = []
        for number in range(6):
            group, length = f"fixed/{2 * self._position + number // 3}", chance.randint(8, 40)
            prompt = length // 2
            ids = [chance.randrange(3, 4096) for _ in range(length)]
            mask = [0] * prompt + [1] * (length - prompt)
            logprobs = [0.0 if each == 0 else -chance.random() for each in mask]
            rows.append({"tokens": ids, "mask": mask, "logprobs": logprobs})
            facts.append(RowFacts(f"{group}-{number}", group, float(number % 3 == 0), length, sum(mask)))  # fmt: skip
        names = list(dict.fromkeys(row.group for row in facts))
        return RolloutBatch(facts, names, [row.rollout for row in facts], block_of(range(6), rows))

    def state(self) -> Mapping[str, Any]:
        """Return the position."""
        return {"position": self._position}

    def acknowledge(self, rollouts: Sequence[str]) -> None:
        """Record the acknowledgement."""
        if rollouts:
            done(self._did, "acknowledge", self._position, self._end)


class RecordedPushes:
    """Engines that record the versions that they get."""

    def __init__(self, did: Path, end: Killer) -> None:
        self._did, self._end = did, end

    def push(self, checkpoint: Checkpoint) -> None:
        """Record a version."""
        done(self._did, "push", checkpoint.step, self._end)


class EndingStore(CheckpointStore):
    """A store that may kill the process just before a commit."""

    end: Killer = {}

    def commit(self, draft: Path, facts: CheckpointFacts) -> Checkpoint:
        """Commit a draft."""
        if self.end.get("commit") == facts.step:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().commit(draft, facts)


def done(did: Path, what: str, step: int, end: Killer) -> None:
    """Record an event, or kill the process that comes to it."""
    if end.get(what) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    with did.open("a") as log:
        log.write(json.dumps([what, step]) + "\n")


def begin(store: CheckpointStore) -> None:
    """Commit checkpoint 0, the weights of a seed."""
    draft = store.begin(0)
    command = [TORCH_PYTHON, "-m", "examples.agent_training.imitation", "--out"]
    made = subprocess.run([*command, str(draft / WEIGHTS)], cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE)  # fmt: skip
    store.commit(draft, CheckpointFacts(0, json.loads(made.stdout.splitlines()[-1])["digest"]))


def loop_of(run: Path, ranks: RankGroup, steps: int, end: Killer, **hooks: Any) -> TrainingLoop:
    """Return the loop of a run."""
    store = EndingStore(run)
    store.end = end
    newest = store.newest()
    if newest is None:
        begin(store)
    did = run / "did.jsonl"
    source = FixedRollouts(did, newest.facts.source if newest else None, end)
    options = TrainingOptions(folder=run, ranks=ranks.ranks, steps=steps)
    return TrainingLoop(options, store, ranks, source, RecordedPushes(did, end), **hooks)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", default=4)
@click.option("--ranks", default=2)
@click.option("--end", default="", help="EVENT:STEP")
@click.option("--dispatcher", is_flag=True, help="Exchange rows by the dispatcher.")
def main(run: Path, steps: int, ranks: int, end: str, dispatcher: bool) -> None:
    """Train on fixed rows."""
    event, _, step = end.partition(":")
    group = RankGroup(ranks, run, dispatcher=dispatcher)
    try:
        loop_of(run, group, steps, {event: int(step)} if end else {}).run()
    finally:
        group.close()


if __name__ == "__main__":
    sys.exit(main())
