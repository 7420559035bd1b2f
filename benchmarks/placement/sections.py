"""What a section of the benchmarks of placement is, and what its sections share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

#: What was found, and the targets that were missed.
Found = tuple[dict[str, Any], list[str]]
T = TypeVar("T")


class Section(Protocol):
    """A module that measures one thing."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this section alone."""
        ...

    def measure(self, options: argparse.Namespace) -> Found:
        """Measure, print, and return what was found."""
        ...


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what ``call`` returns, and its seconds."""
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def lengths(count: int, generator: np.random.Generator) -> list[float]:
    """Return tokens of trajectories with a long tail: log-normal, the median 4,000, at most 40,000 (heddle, §7)."""
    drawn = generator.lognormal(np.log(4000), 0.9, count)
    return [float(each) for each in np.minimum(drawn, 40_000)]


def late(name: str, value: float, limit: float, unit: str) -> list[str]:
    """Return the missed target, if it is missed."""
    return [f"{name}: {value:g} {unit}, target {limit:g}"] if value > limit else []
