"""Checkpoints: folders that are complete or not there.

    RUN/steps/000012/           committed: weights.pt, optimizer.pt, facts.json
    RUN/steps/.000013/          a draft: not read by any process, removed by the next one

Rules
1. Files of a draft are on disk before its folder is renamed, and the rename is on disk before `commit` returns. The rename is the commit.
2. Steps are without gaps: a draft follows the newest checkpoint, else `begin` raises.
3. Checkpoint 0 and the newest two stay; others are removed after a commit.

The standard library alone: ranks and engines read checkpoints under another Python than the trainer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WEIGHTS, OPTIMIZER, FACTS = "weights.pt", "optimizer.pt", "facts.json"
_KEPT = 2


@dataclass(frozen=True)
class AppliedUpdate:
    """One update of the weights, for good."""

    step: int
    #: Names of the groups that it was computed from.
    groups: Sequence[str]
    #: Digests of the weights before and after it.
    before: str
    after: str


@dataclass(frozen=True)
class CheckpointFacts:
    """What a trainer needs to continue, beside the weights."""

    #: Also the version of the weights.
    step: int
    #: Digest of the weights.
    digest: str
    #: State of the rollout source.
    source: Mapping[str, Any] | None = None
    #: Rollouts of the last update: they may be acknowledged.
    rollouts: Sequence[str] = ()
    #: All updates so far, in order.
    applied: Sequence[AppliedUpdate] = ()
    #: Seconds of training so far.
    seconds: float = 0.0
    #: Figures of the run as a whole: rewards before training, switches of degrees.
    figures: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> CheckpointFacts:
        """Return the facts of a file."""
        stored = json.loads(file.read_text())
        applied = [AppliedUpdate(**each) for each in stored.pop("applied")]
        return cls(applied=applied, **stored)


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    folder: Path
    facts: CheckpointFacts

    @property
    def step(self) -> int:
        """Its step, which is the version of its weights."""
        return self.facts.step


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "steps"

    def steps(self) -> list[int]:
        """Return the committed steps, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(each.name) for each in self.folder.iterdir() if each.name.isdecimal())

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint; None before the first one."""
        steps = self.steps()
        return self.at(steps[-1]) if steps else None

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Raises OSError where there is none."""
        folder = self._place(step)
        return Checkpoint(folder, CheckpointFacts.read(folder / FACTS))

    def begin(self, step: int) -> Path:
        """Return an empty folder for the files of a step. Raises ValueError for a step that is not the next one."""
        steps = self.steps()
        following = steps[-1] + 1 if steps else 0
        if step != following:
            raise ValueError(f"the next checkpoint is {following}, not {step}")
        draft = self.folder / f".{step:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, draft: Path, facts: CheckpointFacts) -> Checkpoint:
        """Make a draft the newest checkpoint: all of it, or nothing."""
        stored = asdict(facts)
        (draft / FACTS).write_text(json.dumps(stored, indent=1) + "\n")
        for file in (*draft.iterdir(), draft):
            _sync(file)
        place = self._place(facts.step)
        draft.rename(place)
        _sync(self.folder)
        for step in self.steps()[1:-_KEPT]:
            shutil.rmtree(self._place(step), ignore_errors=True)
        return Checkpoint(place, facts)

    def _place(self, step: int) -> Path:
        return self.folder / f"{step:06d}"


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
