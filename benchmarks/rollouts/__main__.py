"""rollouts: the numbers of rollouts as a service, beside the paper's server (Listing 2 with a tmux shell).

    python -m benchmarks.rollouts                                        all sections; some 25 minutes
    python -m benchmarks.rollouts --only table3 --sweep --trace PATH     other settings and recorded lengths beside; an hour and a half
    python -m benchmarks.rollouts --only noop --only cancels

Sections: table3 (ablations), scale (Figure 5), cancels, noop, many (1,000 at once). Each stores its part of
``results/rollouts.json``. Language models are servers whose tokens take a declared time; tools sleep; environments are real.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.record import store_parts
from benchmarks.rollouts import cancels, many, noop, scale, table3
from benchmarks.rollouts.plans import drawn
from benchmarks.rollouts.trainer import Training

Found = tuple[dict[str, Any], list[str]]


def _table3(options: argparse.Namespace) -> Found:
    training = Training(
        drawn(), wanted=options.wanted, submitted=options.prompts,
        samples=options.samples, steps=options.steps, seed=options.seed,
    )  # fmt: skip
    variants = options.variant or [table3.FULL, *table3.TARGETS, table3.RIVAL]
    points = {}
    for setting in table3.settings("declared", training, options.trace, sweep=options.sweep):
        points[setting.name] = asyncio.run(table3.measure(setting, variants))
        print(f"{setting.name}: {points[setting.name]['ratios']}", flush=True)
    return points, table3.missed(points["declared"]["ratios"])


def _scale(options: argparse.Namespace) -> Found:
    found = asyncio.run(scale.all_sizes(options.seats, options.waves, options.token_seconds))
    return found, scale.missed(found)


def _cancels(options: argparse.Namespace) -> Found:
    found = asyncio.run(cancels.measure(options.cancelled, options.rounds))
    return found, cancels.missed(found)


def _noop(options: argparse.Namespace) -> Found:
    found = asyncio.run(noop.measure(options.noops, options.rounds, options.many))
    return found, noop.missed(found)


def _many(options: argparse.Namespace) -> Found:
    rows = [
        asyncio.run(many.measure(options.many, environments=environments))
        for environments in (False, True)
    ]
    return {"rows": rows}, [late for row in rows for late in many.missed(row)]


SECTIONS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "table3": _table3,
    "scale": _scale,
    "cancels": _cancels,
    "noop": _noop,
    "many": _many,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="default: all")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=3, help="of cancels and noop")
    table = parser.add_argument_group("table3")
    table.add_argument("--variant", action="append", help="only this one; default: all")
    table.add_argument("--sweep", action="store_true", help="other backends and token times too")
    table.add_argument("--trace", type=Path, help="recorded trajectories, as JSON lines")
    table.add_argument("--wanted", type=int, default=Training.wanted, help="informative prompts")
    table.add_argument("--prompts", type=int, default=Training.submitted, help="of each step")
    table.add_argument("--samples", type=int, default=Training.samples)
    table.add_argument("--steps", type=int, default=Training.steps)
    table.add_argument("--seed", type=int, default=Training.seed)
    lines = parser.add_argument_group("scale")
    lines.add_argument("--seats", type=int, default=4, help="of each node's backend")
    lines.add_argument("--waves", type=int, default=8)
    lines.add_argument("--token-seconds", type=float, default=0.015)
    parser.add_argument("--cancelled", type=int, default=64)
    parser.add_argument("--noops", type=int, default=2000)
    parser.add_argument("--many", type=int, default=1000)
    return parser.parse_args()


def main() -> int:
    """Measure, print, store; return 1 when a target is missed."""
    options = _options()
    late: list[str] = []
    for name in options.only or SECTIONS:
        found, missed = SECTIONS[name](options)
        late += [f"{name}: {each}" for each in missed]
        if options.store:
            print("stored in", store_parts("rollouts", {name: found}), flush=True)
    print("missed:" if late else "all targets are met", *late, sep="\n  ")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
