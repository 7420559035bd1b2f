"""The steps of training, and the order in which a step becomes permanent.

0. The engines are divided as the contexts of the step before ask for.
1. The source gives a batch: groups of rollouts whose rewards differ.
2. The ranks compute one update, in a draft of the next checkpoint.
3. The draft is committed. From here on the update is applied, whatever ends.
4. The engines read the new weights.
5. The rollouts of the batch are acknowledged: Tangram deletes their tokens.

A trainer that is started again repeats 4 and 5 of the newest checkpoint, which change nothing where they were done, and continues with 1. A
rank that ends repeats 2, with the same batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from examples.agent_training.checkpoints import (
    AppliedUpdate,
    Checkpoint,
    CheckpointStore,
)
from examples.agent_training.rank_group import RankGroup, RankLost
from examples.agent_training.row_blocks import RowBlock, RowFacts, balanced
from examples.agent_training.training_options import TrainingOptions

#: A step that ranks did not survive so often in a row has a cause that repeating does not cure.
_REPEATS = 5


class UpdateDisagrees(Exception):
    """Ranks computed different weights, or began with others than the checkpoint's."""


@dataclass(frozen=True)
class RolloutBatch:
    """Rows that one update is computed from."""

    rows: Sequence[RowFacts]
    #: Names of the groups, in the order of their rows.
    groups: Sequence[str]
    rollouts: Sequence[str]
    #: The rows' tokens; None: the ranks pull them by ``manifest``.
    block: RowBlock | None = None
    manifest: Mapping[str, Any] | None = None
    #: What the step's line says of the rollouts.
    figures: Mapping[str, Any] = field(default_factory=dict)


class RolloutSource(Protocol):
    """Where batches come from."""

    def batch(self) -> RolloutBatch | None:
        """Return the next batch; None: there is no other."""

    def state(self) -> Mapping[str, Any] | None:
        """Return what another source needs to continue after the last batch."""

    def acknowledge(self, rollouts: Sequence[str]) -> None:
        """Have the tokens of rollouts deleted. Repeating it changes nothing."""


class WeightsUsers(Protocol):
    """Engines that sample with the weights."""

    def push(self, checkpoint: Checkpoint) -> None:
        """Have all engines sample with a checkpoint's weights. Repeating it changes nothing."""


class DegreeChoice(Protocol):
    """Divides the engines as the contexts ask for."""

    def choose(self, step: int, figures: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare the engines for the rollouts of a step; ``figures``: of the step before, empty where they are not known. Return figures of the step."""


class TrainingLoop:
    """One run, from its newest checkpoint on."""

    def __init__(
        self,
        options: TrainingOptions,
        store: CheckpointStore,
        ranks: RankGroup,
        source: RolloutSource,
        engines: WeightsUsers,
        degrees: DegreeChoice | None = None,
        *,
        on_step: Callable[[Mapping[str, Any]], None] = lambda line: None,
        on_repeat: Callable[[int, str], None] = lambda step, why: None,
    ) -> None:
        """``on_step``: gets the figures of each step; ``on_repeat``: the step that is repeated, and why."""
        self.options, self.store = options, store
        self._ranks, self._source, self._engines = ranks, source, engines
        self._degrees = degrees
        self._figures: Mapping[str, Any] = {}
        self._on_step, self._on_repeat = on_step, on_repeat

    def run(self) -> Checkpoint:
        """Train until the steps or the time of the options are over; return the newest checkpoint.

        Raises LookupError without a checkpoint to begin with.
        """
        newest = self.store.newest()
        if newest is None:
            raise LookupError(f"{self.store.folder} has no checkpoint to begin with")
        self._finish(newest)
        began = time.monotonic() - newest.facts.seconds
        while newest.step < self.options.steps and time.monotonic() - began < self.options.seconds:
            following = self._step(newest, began)
            if following is None:
                break
            newest = following
        return newest

    def _step(self, newest: Checkpoint, began: float) -> Checkpoint | None:
        times = {"choice": time.monotonic()}
        chosen = self._degrees.choose(newest.step + 1, self._figures) if self._degrees else {}
        times["rollouts"] = time.monotonic()
        batch = self._source.batch()
        if batch is None:
            return None
        self._figures = batch.figures
        times["ranks"] = time.monotonic()
        found = self._updated(newest, batch)
        times["commit"] = time.monotonic()
        committed = self._committed(newest, batch, found[-1], began)
        times["push"] = time.monotonic()
        self._finish(committed)
        times["end"] = time.monotonic()
        ends = list(times.values())[1:]
        seconds = {
            name: round(end - begun, 3)
            for (name, begun), end in zip(times.items(), ends, strict=False)
        }
        phases = {name for each in found for name in each["seconds"]}
        slowest = {name: max(each["seconds"].get(name, 0.0) for each in found) for name in phases}
        self._on_step({
            "step": committed.step, **batch.figures, **chosen, "rows": len(batch.rows),
            "tokens": sum(row.length for row in batch.rows),
            "loss": round(sum(each.get("loss", 0.0) for each in found), 5),
            "distance": round(sum(each.get("distance", 0.0) for each in found), 5),
            "clipped": round(sum(each.get("clipped", 0.0) for each in found), 4),
            "seconds": {**seconds, **slowest}, "trained_seconds": round(committed.facts.seconds, 1),
        })  # fmt: skip
        return committed

    def _updated(self, newest: Checkpoint, batch: RolloutBatch) -> list[dict[str, Any]]:
        """Return what the ranks say of the update, whose draft is stored. Raises RankLost after too many repeats."""
        for left in reversed(range(_REPEATS)):
            draft = self.store.begin(newest.step + 1)
            try:
                found = self._ranks.order(self._order(newest, batch, draft))
            except RankLost as lost:
                if not left:
                    raise
                self._on_repeat(newest.step + 1, str(lost))
            else:
                (draft / "batch.npz").unlink(missing_ok=True)
                self._check(newest, found)
                return found
        raise AssertionError

    def _order(self, newest: Checkpoint, batch: RolloutBatch, draft: Any) -> dict[str, Any]:
        lengths = [row.length for row in batch.rows]
        ranks = self._ranks.ranks
        order = {
            "step": newest.step + 1,
            "base": newest.step,
            "draft": str(draft),
            "rate": self.options.rate,
            "reference_weight": self.options.reference_weight,
            "rows": [list(row) for row in batch.rows],
            "experience": balanced(lengths, list(range(max(1, ranks // 2)))),
            "update": balanced(lengths, list(range(ranks // 2, ranks))),
        }
        if batch.manifest is not None:
            return {**order, "manifest": batch.manifest, "experience": owners_of(batch.manifest)}
        if batch.block is not None:
            file = draft / "batch.npz"
            batch.block.save(file)
            order["file"] = str(file)
        return order

    def _check(self, newest: Checkpoint, found: Sequence[Mapping[str, Any]]) -> None:
        """Raise UpdateDisagrees where ranks that update have different weights."""
        updaters = [each for each in found if "after" in each]
        before = {each["before"] for each in updaters}
        if before != {newest.facts.digest}:
            raise UpdateDisagrees(f"weights {sorted(before)} at the beginning, where checkpoint {newest.step} has {newest.facts.digest}")  # fmt: skip
        if len({each["after"] for each in updaters}) != 1:
            raise UpdateDisagrees("ranks have different weights after the same update")

    def _committed(
        self, newest: Checkpoint, batch: RolloutBatch, last: Mapping[str, Any], began: float
    ) -> Checkpoint:
        step, facts = newest.step + 1, newest.facts
        trained = [name for update in facts.applied for name in update.groups]
        if again := set(trained) & set(batch.groups):
            raise UpdateDisagrees(f"group {sorted(again)[0]} was trained before")
        update = AppliedUpdate(step, list(batch.groups), facts.digest, last["after"])
        following = replace(
            facts, step=step, digest=last["after"], source=self._source.state(), rollouts=list(batch.rollouts),
            applied=[*facts.applied, update], seconds=time.monotonic() - began,
        )  # fmt: skip
        return self.store.commit(self.store.folder / f".{step:06d}", following)

    def _finish(self, checkpoint: Checkpoint) -> None:
        """Do what follows a commit; again after a restart."""
        self._engines.push(checkpoint)
        self._source.acknowledge(checkpoint.facts.rollouts)


def owners_of(manifest: Mapping[str, Any]) -> list[int]:
    """Return the rank of each row of a batch."""
    owners = [0] * len(manifest["rows"])
    for each in manifest["owners"]:
        for number in each["rows"]:
            owners[number] = each["rank"]
    return owners
