"""Finished trajectories for tests of predictors."""

from __future__ import annotations

import random
from typing import TypeVar

from placement.features import Features, FinishedTrajectory, Progress, TrajectoryStep

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return what is not None."""
    assert value is not None
    return value


def a_trajectory(
    steps: int,
    tokens: float = 100.0,
    tool_seconds: float = 1.0,
    task: str = "grpo",
    group: str = "",
) -> FinishedTrajectory:
    """Return one whose steps are alike."""
    step = TrajectoryStep(tokens, tool_seconds)
    return FinishedTrajectory(task, (step,) * steps, group)


def slow_and_quick(count: int, seed: int = 0, samples: int = 1) -> list[FinishedTrajectory]:
    """Return trajectories whose first step shows how long they become: many tokens, many steps."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        slow = chance.random() < 0.5
        for _ in range(samples):
            steps = chance.randint(20, 40) if slow else chance.randint(4, 8)
            tokens = 400 if slow else 50
            found.append(
                FinishedTrajectory(
                    "grpo",
                    tuple(
                        TrajectoryStep(
                            tokens * chance.uniform(0.8, 1.2), chance.uniform(0.5, 1.5), 100.0 * step,
                            "test" if slow else "read",
                        )
                        for step in range(steps)
                    ),
                    f"p-{number}",
                )
            )  # fmt: skip
    return found


def features_after(finished: FinishedTrajectory, steps: int) -> Features:
    """Return its features after so many of its steps."""
    progress = Progress(finished.task, finished.group, finished.prompt_tokens)
    for step in finished.steps[:steps]:
        progress.add(step)
    return progress.features()
