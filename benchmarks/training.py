"""Rewards of a small model that DAPO trains through rollouts (ProRL Agent, Figure 4): math, STEM with a search, code; three seeds.

    python -m benchmarks.training                            # nine runs of examples/rollouts/train.py
    python -m benchmarks.training --only math --seeds 1

Each run begins with a model that imitates a teacher with errors, and takes a fixed number of steps. The figure is the share of right
answers on a fixed set of instances before and after, sampled at temperature 1, and the interval of its rise over the seeds. The
models, tasks and step counts are small, as two cores allow: the paper trains 8B to 32B models on SWE-Gym, AIME and STEM sets.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from benchmarks.record import store_parts
from benchmarks.stack import ROOT, Stack, free_port, tangram

TASKS: Final = ("math", "code", "stem")
GOAL: Final = 0.25
_MOST_SECONDS: Final = 20 * 60
_SHOWN: Final = 200
#: Quantile 0.975 of Student's t by degrees of freedom.
_T: Final[Mapping[int, float]] = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@click.command()
@click.option("--only", type=click.Choice(TASKS), multiple=True, help="These tasks alone.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--steps", default=40, show_default=True, help="Steps of DAPO.")
def main(only: Sequence[str], seeds: int, steps: int) -> None:
    """Train the small model, and store how its reward rises."""
    with tangram() as stack:
        declared = [
            sys.executable,
            "-m",
            "tangram_client",
            "apply",
            "examples/rollouts/elements.yaml",
        ]
        subprocess.run(declared, cwd=ROOT, env=environment(stack), check=True)
        missed = []
        for task in only or TASKS:
            summary = _summary([_train(stack, task, seed, steps) for seed in range(seeds)])
            missed += [f"{task}: {each}" for each in missed_of(summary)]
            path = store_parts("training", {task: summary})
    click.echo(f"stored in {path}")
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def missed_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the goals that a task misses."""
    checks = {
        f"a rise of {summary['rise']} below {GOAL}": summary["reaches_goal"],
        f"an interval {summary['interval']} that has 0": summary["excludes_0"],
        f"a run of {summary['longest_seconds']} s": summary["longest_seconds"] <= _MOST_SECONDS,
    }
    return [problem for problem, reached in checks.items() if not reached]


def environment(stack: Stack) -> dict[str, str]:
    """Return the variables of a client of a stack."""
    return {**os.environ, "TANGRAM_HOME": str(stack.home), "OPENBLAS_NUM_THREADS": "1"}


def _train(stack: Stack, task: str, seed: int, steps: int) -> dict[str, Any]:
    """Return the figures of one run."""
    command = [sys.executable, "-m", "examples.rollouts.train", task, "--seed", str(seed)]
    command += ["--steps", str(steps), "--port", str(free_port())]
    line = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(stack), stdout=subprocess.PIPE, text=True
    ) as run:
        for line in run.stdout or ():
            click.echo(line[:_SHOWN].rstrip())
    if run.returncode != 0:
        raise SystemExit(f"the run ended with {run.returncode}")
    figures: dict[str, Any] = json.loads(line)
    return figures


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rise with its interval, and whether it reaches the goal."""
    rises = [run["after"] - run["before"] for run in runs]
    mean = statistics.fmean(rises)
    half = math.inf
    if len(rises) > 1:
        half = _T[len(rises) - 1] * statistics.stdev(rises) / math.sqrt(len(rises))
    summary = {
        "rise": round(mean, 3),
        "interval": [round(mean - half, 3), round(mean + half, 3)] if math.isfinite(half) else None,
        "excludes_0": math.isfinite(half) and mean - half > 0,
        "goal": GOAL,
        "reaches_goal": mean >= GOAL,
        "longest_seconds": round(max(run["seconds"] for run in runs)),
        "runs": runs,
    }
    shown = {name: value for name, value in summary.items() if name != "runs"}
    click.echo(f"{runs[0]['task']}: {shown}")
    return summary


if __name__ == "__main__":
    main()
