"""One worker, step by step: trajectories that alternate generations with tools, the longest first, each second of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass
class Trajectory:
    """Tokens of its generations, and the seconds of the tool after each but the last."""

    generations: list[float]
    tools: list[float]
    #: Seconds left of the tool that it is in.
    in_tool: float = 0.0

    @property
    def left(self) -> float:
        """Return the tokens that are left."""
        return sum(self.generations)


def alternating(tokens: float, tool_seconds: float, steps: int) -> Trajectory:
    """Return a trajectory of equal steps, a tool before each generation."""
    tools = [tool_seconds / steps] * steps
    return Trajectory([tokens / steps] * steps, tools[1:], in_tool=tools[0])


def drained(
    trajectories: Sequence[Trajectory], token_seconds: Callable[[int], float], slots: int
) -> float:
    """Return when the last trajectory ends, generations by longest rest first; ``token_seconds`` is by batch."""
    now, going = 0.0, list(trajectories)
    while going:
        waiting = [each for each in going if not each.in_tool]
        batch = sorted(waiting, key=lambda each: -each.left)[:slots]
        pace = token_seconds(len(batch)) if batch else 1.0
        until = [each.in_tool for each in going if each.in_tool]
        step = min([*until, *(each.generations[0] * pace for each in batch)])
        now += step
        for each in going:
            if each.in_tool:
                each.in_tool = max(0.0, each.in_tool - step) if each.in_tool > step else 0.0
        for each in batch:
            each.generations[0] -= step / pace
            if each.generations[0] <= 1e-9:
                each.generations.pop(0)
                each.in_tool = each.tools.pop(0) if each.tools else 0.0
        going = [each for each in going if each.generations]
    return now
