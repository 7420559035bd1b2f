"""What the parts of Tangram bring together: a small agent that is trained by `examples/train_agent.py`.

    python -m benchmarks.train_agent                              # three seeds of 30 minutes: how the reward rises
    python -m benchmarks.train_agent --minutes 5 --seeds 1
    python -m benchmarks.train_agent --steps-with-and-without 6   # time of a step with all parts, and without each

The rise is that of the mean reward on a fixed set of instances, before and after, with its interval over the seeds. All seeds begin with the
checkpoint that the first one imitated, or with that of ``--start``; a seed draws instances and answers.

Times of steps are those of runs that begin with the same weights and take as many steps; the first step of each, which fills caches, is left
out. Each run has a Tangram of its own. A reward that does not rise is stored as it is.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.record import store_parts
from benchmarks.stack import ROOT
from examples.agent_training.training_options import PARTS

GOAL: Final = 0.25
#: Quantile 0.975 of Student's t by degrees of freedom.
_T: Final[Mapping[int, float]] = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="Time of training of each seed.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--ranks", default=4, show_default=True)
@click.option("--steps-with-and-without", "steps", default=0, help="Compare the times of so many steps instead.")  # fmt: skip
@click.option("--taught", default=600, show_default=True, help="Conversations that are imitated.")
@click.option("--start", type=click.Path(path_type=Path, exists=True), help="Run whose checkpoint 0 all begin with [the first run's].")  # fmt: skip
def main(
    minutes: float, seeds: int, ranks: int, steps: int, taught: int, start: Path | None
) -> None:
    """Train, and store the figures."""
    shared = ["--ranks", str(ranks), "--taught", str(taught)]
    with tempfile.TemporaryDirectory(prefix="train-agent-") as place:
        if steps:
            parts = {"steps": _with_and_without(Path(place), shared, steps, start)}
        else:
            runs: list[dict[str, Any]] = []
            for seed in range(seeds):
                options = [*shared, "--minutes", str(minutes), "--seed", str(seed)]
                runs.append(_trained(Path(place) / f"seed-{seed}", [*options, *_beginning(start)]))
                start = start or Path(place) / "seed-0"
                parts = {"rise": rise_of(runs)}
                # Stored after each seed: a run that is ended early keeps what it has.
                store_parts("train_agent", parts)
    click.echo(f"stored in {store_parts('train_agent', parts)}")
    missed = [] if steps else missed_of(parts["rise"])
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def rise_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean rise with its interval over the seeds, and the curves."""
    rises = [run["after"] - run["before"] for run in runs]
    mean, half = statistics.fmean(rises), math.inf
    if len(rises) > 1:
        half = _T[len(rises) - 1] * statistics.stdev(rises) / math.sqrt(len(rises))
    return {
        "rise": round(mean, 3),
        "interval": [round(mean - half, 3), round(mean + half, 3)] if math.isfinite(half) else None,
        "goal": GOAL,
        "reaches_goal": mean >= GOAL,
        "runs": list(runs),
    }


def missed_of(rise: Mapping[str, Any]) -> list[str]:
    """Return the goals that the rise misses."""
    interval = rise["interval"]
    checks = {
        f"a rise of {rise['rise']} below {GOAL}": rise["reaches_goal"],
        f"an interval {interval} that has 0": interval is None or interval[0] > 0,
    }
    return [problem for problem, reached in checks.items() if not reached]


def step_times(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median seconds of each phase, and of a step, without the first one."""
    steps = [line["seconds"] for line in lines if line["event"] == "step"][1:]
    outer = ("choice", "rollouts", "ranks", "commit", "push")
    totals = [sum(each.get(name, 0.0) for name in outer) for each in steps]
    if not totals:
        return {"steps": 0}
    names = sorted({name for each in steps for name in each})
    medians = {name: round(statistics.median(each.get(name, 0.0) for each in steps), 3) for name in names}  # fmt: skip
    return {"steps": len(steps), "seconds": round(statistics.median(totals), 2), "least": round(min(totals), 2), "most": round(max(totals), 2), "phases": medians}  # fmt: skip


def _beginning(start: Path | None) -> list[str]:
    """Return the option that names the run whose checkpoint 0 another one begins with."""
    return [] if start is None else ["--start", str(start)]


def _with_and_without(
    place: Path, shared: Sequence[str], steps: int, start: Path | None
) -> dict[str, Any]:
    """Return the times of steps with all parts, and without each."""
    if start is None:
        start = place / "start"
        _trained(start, [*shared, "--steps", "0", "--measured", "0"])
    found = {}
    for left_out in (None, *PARTS):
        options = [*shared, "--steps", str(steps), "--measured", "0", *_beginning(start)]
        options += ["--without", left_out] if left_out else []
        run = _trained(place / (left_out or "all"), options)
        name = f"without {left_out}" if left_out else "all parts"
        found[name] = run["times"]
        click.echo(f"{name}: {run['times']}")
    return found


def _trained(folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the figures of one run of the command, with its curve and the times of its steps."""
    command = [sys.executable, "examples/train_agent.py", "--run", str(folder), *options]
    environment = {**os.environ, "TANGRAM_HOME": str(folder / "tangram"), "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    environment.pop("TANGRAM_URL", None)
    line = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:  # fmt: skip
        for line in run.stdout or ():
            click.echo(line[:200].rstrip())
    if run.returncode != 0:
        raise SystemExit(f"the run ended with {run.returncode}")
    lines = [json.loads(each) for each in (folder / "steps.jsonl").read_text().splitlines()]
    curve = [{name: each.get(name) for name in ("step", "reward", "context", "longest", "degree", "switches", "act_seconds", "wasted")} for each in lines if each["event"] == "step"]  # fmt: skip
    figures: dict[str, Any] = {**json.loads(line), "curve": curve, "times": step_times(lines)}
    return figures


if __name__ == "__main__":
    main()
