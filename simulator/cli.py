"""`tangram sim`: simulate a workload under one policy, or under several side by side.

Standard output carries the result, standard error what happens meanwhile. Bad input is one line and
exit code 2; nothing is printed of a comparison that did not come to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from domain.errors import InvalidRequest, InvariantViolation
from simulator.capacity import MEASURES, Wish, fewest_nodes
from simulator.cluster import GIB, Cluster
from simulator.compare import POLICIES, Progress, Scene, check_policies, compare
from simulator.result import encode
from simulator.show import plan_table, tables, trial_text
from simulator.traces import make_recordings, read_recordings
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.rewards import PRESETS
from tangram_client.replay.trace import TraceError

#: Trajectories made up when there is no trace: about as many as the AgentCgroup trace has.
GENERATED: Final = 116
#: Columns of a table that goes into a pipe: it is never cut.
PIPE_WIDTH: Final = 200

_OPTIONS: Final = (
    click.argument("trace", required=False, type=click.Path(path_type=Path)),
    click.option("--batch", default=128, show_default=True, help="Trajectories of an RL step."),
    click.option("--steps", default=1, show_default=True, help="RL steps."),
    click.option("--group", default=8, show_default=True, help="Trajectories of a prompt."),
    click.option("--nodes", default=15, show_default=True, help="Nodes of the cluster."),
    click.option("--cores", default=256, show_default=True, help="Cores of each node."),
    click.option("--memory-gib", default=2400, show_default=True, help="Memory of each node."),
    click.option(
        "--rewards", type=click.Choice(sorted(PRESETS)), default="medium", show_default=True,
        help="How long test suites take at the end of trajectories (simulator/workloads/rewards.py).",
    ),
    click.option("--reward-scale", default=1.0, show_default=True, help="Times as long."),
    click.option("--units", default=32, show_default=True, help="Most cores of a reward."),
    click.option("--malleable", is_flag=True, help="Running rewards may be resized."),
    click.option("--failures", default=0.0, show_default=True,
                 help="Share of grants that fail before their start."),
    click.option("--seed", default=0, show_default=True),
    click.option("--json", "as_json", is_flag=True, help="The whole result as JSON."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
)  # fmt: skip


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what both commands take."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def verbs() -> None:
    """Simulate: the production scheduler and ledgers in virtual time, trainers and nodes modelled.

    Without TRACE the trajectories of coding agents are made up.
    """


@verbs.command("run")
@click.option("--policy", default="minimum", show_default=True, help="How units are granted.")
@with_options
def run_command(policy: str, **options: Any) -> None:
    """Simulate under one policy."""
    _simulate([policy], **options)


@verbs.command("compare")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Give several [all that there are].",
)
@with_options
def compare_command(policies: tuple[str, ...], **options: Any) -> None:
    """Simulate under several policies, on the same draws."""
    _simulate(policies or POLICIES, **options)


@verbs.command("plan")
@click.option("--policy", default="minimum", show_default=True, help="How units are granted.")
@click.option("--act", "act_seconds", type=float, required=True, help="Wished ACT in seconds.")
@click.option("--measure", type=click.Choice(list(MEASURES)), default="mean", show_default=True)
@click.option("--of-rewards", is_flag=True, help="ACT of rewards alone.")
@with_options
def plan_command(
    policy: str, act_seconds: float, measure: str, of_rewards: bool, **options: Any
) -> None:
    """Find how few nodes fulfil a wished ACT; --nodes is the most that may be.

    Exit code 1 when not even they are enough.
    """
    as_json, quiet = options.pop("as_json"), options.pop("quiet")
    with _one_line_errors():
        wish, scene = Wish(act_seconds, measure, of_rewards), _scene(**options)
        say = None if quiet else lambda trial: click.echo(trial_text(trial), err=True)
        answer = fewest_nodes(scene, policy, wish, scene.cluster.nodes, say)
    if as_json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        _print(plan_table(answer, scene.cluster.cores))
    if answer.nodes is None:
        sys.exit(1)


def main() -> None:
    """Run the command line."""
    verbs(prog_name="tangram sim")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """End with exit code 2 when the input is bad, 1 when the simulation itself is."""
    try:
        yield
    except (InvalidRequest, TraceError, InvariantViolation) as error:
        click.echo(f"tangram sim: {error}", err=True)
        sys.exit(1 if isinstance(error, InvariantViolation) else 2)


def _simulate(policies: Sequence[str], *, as_json: bool, quiet: bool, **options: Any) -> None:
    with _one_line_errors():
        check_policies(policies)
        scene = _scene(**options)
        with _shown(scene.workload.actions, quiet=quiet) as progress:
            timed = list(compare(scene, policies, progress))
    if as_json:
        sys.stdout.write(encode([each.result for each in timed]).decode())
    else:
        _print(*tables(timed))


def _scene(
    trace: Path | None, batch: int, steps: int, group: int, nodes: int, cores: int,
    memory_gib: int, rewards: str, reward_scale: float, units: int, malleable: bool,
    failures: float, seed: int,
) -> Scene:  # fmt: skip
    if not 0 <= failures < 1:
        raise InvalidRequest(f"--failures lies in [0, 1), not at {failures!r}")
    recordings = make_recordings(GENERATED, seed) if trace is None else read_recordings(trace)
    chosen = replace(PRESETS[rewards], scale=reward_scale, most_units=units, malleable=malleable)
    workload = AiCoding(
        recordings, batch=batch, rl_steps=steps, rewards=chosen, seed=seed, group_size=group
    )
    cluster = Cluster(nodes, cores, memory_gib * GIB)
    return Scene(workload, cluster, failure_ratio=failures, seed=seed)


def _print(*parts: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    console.print(*parts, sep="\n")


@contextmanager
def _shown(actions: int, *, quiet: bool) -> Iterator[Progress | None]:
    """Show how many actions have finished under each policy, on standard error."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Bars(*columns, TimeRemainingColumn(), console=console) as bars:
        shown = {}

        def progress(policy: str, done: int) -> None:
            if policy not in shown:
                shown[policy] = bars.add_task(policy, total=actions)
            bars.update(shown[policy], completed=done)

        yield progress
