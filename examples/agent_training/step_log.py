"""What a run says: one line of text for each step, and the same figures as a line of JSON in ``RUN/steps.jsonl``.

The log is for readers. What a run did is in its checkpoints: a trainer that is killed between a commit and its line leaves no line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tangram_client import Client
from tangram_client._calls import API, json_of
from tangram_client._core import ApiCall
from tangram_client.errors import TangramClientError

#: Phase → its word in the line; others are in the file alone.
_PHASES: Final = ("rollouts", "experience", "exchange", "update", "push")


class ActMeter:
    """Mean completion time of a task's actions since the last look."""

    def __init__(self, client: Client, task: str) -> None:
        self._client, self._task = client, task
        self._seen = self._totals() or (0, 0.0)

    def mean(self) -> float | None:
        """Return seconds; None where no action finished meanwhile, or Tangram does not say."""
        totals = self._totals()
        if totals is None or totals[0] == self._seen[0]:
            return None
        finished, seconds = totals[0] - self._seen[0], totals[1] - self._seen[1]
        self._seen = totals
        return round(seconds / finished, 3)

    def _totals(self) -> tuple[int, float] | None:
        try:
            task = self._client.send(ApiCall("GET", f"{API}/tasks/{self._task}", json_of))
        except TangramClientError:
            return None
        return int(task["finished"]), float(task["external_seconds"])


class StepLog:
    """Writes the lines of a run."""

    def __init__(
        self, folder: Path, echo: Callable[[str], None], act: Callable[[], float | None]
    ) -> None:
        self._file, self._echo, self._act = folder / "steps.jsonl", echo, act

    def step(self, figures: Mapping[str, Any]) -> None:
        """Write the line of a step."""
        line = {**figures, "act_seconds": self._act()}
        self.event("step", line)
        self._echo(line_of(line))

    def event(self, what: str, figures: Mapping[str, Any]) -> None:
        """Write anything else that happens in a run to the file alone."""
        with self._file.open("a") as log:
            log.write(json.dumps({"event": what, **figures}) + "\n")


def line_of(step: Mapping[str, Any]) -> str:
    """Return the text of a step's line."""
    seconds = step["seconds"]
    act = step.get("act_seconds")
    phases = " ".join(f"{name} {seconds[name]:.1f}" for name in _PHASES if name in seconds)
    reward = step.get("reward")
    words = [
        f"step {step['step']}:",
        f"reward {reward:.2f}" if reward is not None else "reward –",
        f"ACT {act:.2f} s" if act is not None else "ACT –",
        f"context {step.get('context', 0)} (longest {step.get('longest', 0)})",
        f"turns {step.get('turns', 0):.2f}",
        f"tokens {step['tokens']}",
        f"waste {step.get('wasted', 0):.0%}",
        f"switches {step.get('switches', 0)}",
        f"| s: {phases}",
    ]
    return "  ".join(words)
