"""Train a small agent with all of Tangram, on a CPU.

    python examples/train_agent.py --ranks 4                  # with the Python of .venv

An agent learns to read notes with a shell in its sandbox and to write the program that they ask for; real test cases in the sandbox are the
reward. It is a model of 360,000 weights and a small task: what is real is the loop. Rollouts are elastic and served by Tangram, a fleet
of small engines samples them by trajectory, ranks of the trainer exchange rows, and the next version of the weights goes to the engines.
docs/training.md explains the output.

It uses the Tangram that answers, else it starts one of its own below the run's folder. The same command continues a run that was ended or
killed. Needs Debian's ``python3-torch``; with ``libopenblas0-pthread`` matrices are multiplied twenty times as fast.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # it is run as a file
    sys.path.insert(0, str(ROOT))

from examples.agent_training import beginning, note_task  # noqa: E402
from examples.agent_training.checkpoints import CheckpointStore  # noqa: E402
from examples.agent_training.engine_degrees import EngineDegrees  # noqa: E402
from examples.agent_training.engines import (  # noqa: E402
    BackendEngines,
    EngineFailed,
    EngineProcesses,
    FleetEngines,
)
from examples.agent_training.own_rollouts import OwnRollouts  # noqa: E402
from examples.agent_training.own_tangram import NoTangram, tangram_of  # noqa: E402
from examples.agent_training.rank_group import RankGroup, RankLost  # noqa: E402
from examples.agent_training.rollout_sources import ServiceRollouts, run_all  # noqa: E402
from examples.agent_training.step_log import ActMeter, StepLog  # noqa: E402
from examples.agent_training.training_loop import TrainingLoop, UpdateDisagrees  # noqa: E402
from examples.agent_training.training_options import PARTS, TrainingOptions  # noqa: E402
from examples.rollouts.demo import place_tokenizer  # noqa: E402
from tangram_client import Client  # noqa: E402
from tangram_client.errors import TangramClientError  # noqa: E402
from tangram_client.retry import RetryPolicy  # noqa: E402

#: Patience with a Tangram of which a part was killed.
_PATIENT = RetryPolicy(attempts=10_000, total_seconds=600.0)


def train(options: TrainingOptions, start: Path | None = None) -> dict[str, Any]:
    """Train as the options say; return the figures of the run."""
    options.folder.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(options.folder)
    with tangram_of(options.folder) as url, Client(retry=_PATIENT) as client:
        click.echo(f"Tangram: {url}   page of the task: {url}/tasks/default/{options.name}/")
        place_tokenizer()
        sets = beginning.note_sets(client, options)
        if store.newest() is None:
            beginning.begin(client, options, store, sets, click.echo, start)
        engines = EngineProcesses(options)
        known = (FleetEngines if options.uses("placement") else BackendEngines)(client, options, engines)  # fmt: skip
        degrees = EngineDegrees(client, options, engines, known.register, click.echo) if options.uses("selector") else None  # fmt: skip
        ranks = RankGroup(options.ranks, options.folder, dispatcher=options.uses("dispatcher"))
        try:
            engines.start()
            if degrees is not None:
                degrees.declare()
            known.register()
            return _trained(client, options, store, sets, known, ranks, degrees)
        finally:
            ranks.close()
            engines.close()


def _trained(
    client: Client,
    options: TrainingOptions,
    store: CheckpointStore,
    sets: Sequence[note_task.NoteSet],
    engines: FleetEngines | BackendEngines,
    ranks: RankGroup,
    degrees: EngineDegrees | None,
) -> dict[str, Any]:
    newest = store.newest()
    assert newest is not None
    log = StepLog(options.folder, click.echo, ActMeter(client, options.name).mean)
    before = _measured(client, options, sets, engines.llm, log, "before") if newest.step == 0 else None  # fmt: skip
    source = _source(client, options, sets, engines, newest.facts.source)

    def repeated(step: int, why: str) -> None:
        click.echo(f"step {step} is repeated: {why}")
        log.event("repeat", {"step": step, "why": why})

    loop = TrainingLoop(options, store, ranks, source, engines, degrees, on_step=log.step, on_repeat=repeated)  # fmt: skip
    newest = loop.run()
    source.close()
    after = _measured(client, options, sets, engines.llm, log, "after")
    before = before if before is not None else _logged(options.folder, "before")
    figures = {
        "seed": options.seed, "ranks": options.ranks, "without": sorted(options.without), "steps": newest.step,
        "seconds": round(newest.facts.seconds, 1), "before": before, "after": after, **newest.facts.figures,
    }  # fmt: skip
    log.event("end", figures)
    return figures


def _source(
    client: Client,
    options: TrainingOptions,
    sets: Sequence[note_task.NoteSet],
    engines: FleetEngines | BackendEngines,
    state: Mapping[str, Any] | None,
) -> ServiceRollouts | OwnRollouts:
    """Return where batches come from."""
    if options.uses("rollout-service"):
        readers = max(1, options.ranks // 2) if options.uses("dispatcher") else 0
        return ServiceRollouts(client, options, sets, engines.llm, state, readers=readers)
    return OwnRollouts(client, options, sets, engines.doors, state)


def _measured(
    client: Client,
    options: TrainingOptions,
    sets: Sequence[note_task.NoteSet],
    llm: str,
    log: StepLog,
    when: str,
) -> float | None:
    """Return the agent's mean reward on the instances that measure."""
    if not options.measured:
        return None
    began = time.monotonic()
    instances = note_task.measured(sets, options.measured, seed=0)
    found = run_all(client, options, instances, llm, f"{options.name}-measure")
    reward = beginning.right(found)
    seconds = time.monotonic() - began
    log.event(when, {"reward": reward, "rollouts": len(found), "seconds": round(seconds, 1)})
    click.echo(f"{when} training: reward {reward:.3f} on {len(found)} instances ({seconds:.0f} s)")
    return reward


def _logged(folder: Path, event: str) -> float | None:
    """Return a reward that an earlier process of the run measured."""
    file = folder / "steps.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        found = json.loads(line)
        if found["event"] == event:
            reward: float = found["reward"]
            return reward
    return None


@click.command(help=__doc__)
@click.option("--ranks", default=4, show_default=True, help="Processes of the trainer.")
@click.option("--engines", default=2, show_default=True, help="Engines that sample.")
@click.option("--rank-memory-mb", "rank_memory", default=60, show_default=True, help="Memory of each rank of an engine, as a GPU has it; 0: no limit.")  # fmt: skip
@click.option("--context", "contexts", multiple=True, type=int, default=TrainingOptions.contexts, show_default=True, help="Context length at which each degree of the engines is measured, ascending; repeatable.")  # fmt: skip
@click.option("--minutes", default=30.0, show_default=True, help="Time of training.")
@click.option("--steps", default=1000, show_default=True, help="Steps, at most.")
@click.option("--seed", default=0, show_default=True)
@click.option("--prompts", default=8, show_default=True, help="Groups of a step.")
@click.option("--samples", default=8, show_default=True, help="Rollouts of a group.")
@click.option("--taught", default=600, show_default=True, help="Conversations that are imitated.")
@click.option("--epochs", default=16, show_default=True, help="Passes over them.")
@click.option("--measured", default=96, show_default=True, help="Instances before and after; 0: none.")  # fmt: skip
@click.option("--run", "folder", type=click.Path(path_type=Path), default=Path("train-agent-run"), show_default=True, help="Folder of checkpoints and logs; a run that is there continues.")  # fmt: skip
@click.option("--name", default="train-agent", show_default=True, help="Task and fleet.")
@click.option("--start", type=click.Path(path_type=Path, exists=True), help="Run whose checkpoint 0 this one begins with.")  # fmt: skip
@click.option("--without", multiple=True, type=click.Choice(list(PARTS)), help="Part that is left out; repeatable.")  # fmt: skip
def main(
    ranks: int, engines: int, rank_memory: int, contexts: Sequence[int], minutes: float, steps: int, seed: int, prompts: int, samples: int, taught: int,
    epochs: int, measured: int, folder: Path, name: str, start: Path | None, without: Sequence[str],
) -> None:  # fmt: skip
    """Run the command."""
    try:
        options = TrainingOptions(
            folder.resolve(), name, ranks, engines, seed, steps, 60 * minutes, prompts, samples, taught=taught,
            epochs=epochs, measured=measured, growth=12 * prompts, without=frozenset(without), contexts=tuple(contexts),
            rank_memory_bytes=rank_memory * 2**20,
        )  # fmt: skip
        figures = train(options, start)
    except (NoTangram, beginning.NoBeginning, EngineFailed, RankLost, UpdateDisagrees, ValueError, TangramClientError) as error:  # fmt: skip
        raise click.ClickException(str(error)) from None
    before, after = figures["before"], figures["after"]
    if before is not None and after is not None:
        risen = "rose" if after > before else "did not rise"
        click.echo(f"The reward {risen}: {before:.3f} → {after:.3f} in {figures['steps']} steps. It is a small model and a small task.")  # fmt: skip
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
