"""The beginning of a run: sets of notes as snapshots, conversations of the teacher, and checkpoint 0 that imitates them."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from examples.agent_training import note_task
from examples.agent_training.checkpoints import (
    WEIGHTS,
    Checkpoint,
    CheckpointFacts,
    CheckpointStore,
)
from examples.agent_training.rank_group import ROOT, TORCH_PYTHON
from examples.agent_training.rollout_sources import first_state, row_of, run_all
from examples.agent_training.training_options import TrainingOptions
from examples.rollouts.small_model.tasks import Task
from examples.rollouts.train import teacher
from tangram_client import Client
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.errors import ConflictError

_TEACHER_POOL: Final = "train-agent-teacher"


class NoBeginning(Exception):
    """Checkpoint 0 cannot be made."""


def note_sets(client: Client, options: TrainingOptions) -> list[note_task.NoteSet]:
    """Return the sets of notes, whose snapshots are made where they are missing."""
    sets = [note_task.note_set(number) for number in range(note_task.SETS)]
    there = {each["name"] for each in client.snapshots.list()}
    for each in sets:
        if each.snapshot in there:
            continue
        name = f"{each.snapshot}-{random.randrange(10**9)}"
        with client.trajectory(name, task=f"{options.name}-notes", environment={}) as trajectory:
            written = trajectory.exec(["sh", "-c", _script(each)], cpu=1)
            if written.exit_code != 0:
                raise NoBeginning(f"notes cannot be written in a sandbox: {written.stderr or written.detail}")  # fmt: skip
            try:
                trajectory.snapshot(each.snapshot)
            except ConflictError:
                continue  # another run made it meanwhile
    return sets


def _script(notes: note_task.NoteSet) -> str:
    """Return the shell commands that write the notes."""
    lines = [f"echo '{text}' > {name}" for name, text in notes.notes.items()]
    return " && ".join([f"mkdir -p {note_task.FOLDER}", f"cd {note_task.FOLDER}", *lines])


def begin(
    client: Client,
    options: TrainingOptions,
    store: CheckpointStore,
    sets: Sequence[note_task.NoteSet],
    say: Callable[[str], None],
    start: Path | None = None,
) -> Checkpoint:
    """Commit checkpoint 0: weights of another run's checkpoint 0, or an imitation of the teacher. Raises NoBeginning."""
    draft = store.begin(0)
    if start is not None:
        earlier = CheckpointStore(start).at(0)
        shutil.copy(earlier.folder / WEIGHTS, draft / WEIGHTS)
        digest, figures = earlier.facts.digest, dict(earlier.facts.figures)
    else:
        share, digest = _imitated(client, options, sets, draft, say)
        figures = {"teacher": share}
    facts = CheckpointFacts(0, digest, source=first_state(client, options.name), figures=figures)
    return store.commit(draft, facts)


def right(found: Sequence[RolloutInfo]) -> float:
    """Return the mean reward of some rollouts. Raises NoBeginning where too many have none."""
    broken = [info for info in found if info.reward is None]
    if len(broken) > len(found) // 10:
        first = broken[0]
        raise NoBeginning(f"{len(broken)} of {len(found)} rollouts have no reward: {first.outcome}, {first.reason}")  # fmt: skip
    return round(statistics.fmean(info.reward or 0.0 for info in found), 4)


def _imitated(
    client: Client,
    options: TrainingOptions,
    sets: Sequence[note_task.NoteSet],
    draft: Path,
    say: Callable[[str], None],
) -> tuple[float, str]:
    """Store weights that imitate the teacher; return its mean reward, and their digest."""
    taught = options.folder / "taught.json"
    if not taught.exists():
        found = _taught(client, options, sets)
        rows = [row_of(segment) for info in found for segment in info.segments or ()]
        samples = [{"ids": row["tokens"], "mask": row["mask"]} for row in rows]
        part = taught.with_suffix(".part")
        part.write_text(json.dumps({"reward": right(found), "samples": samples}))
        part.rename(taught)
    stored = json.loads(taught.read_text())
    length = statistics.fmean(len(each["ids"]) for each in stored["samples"])
    share: float = stored["reward"]
    say(f"teacher: {len(stored['samples'])} conversations of {length:.0f} tokens, reward {share:.2f}")  # fmt: skip
    return share, _imitate(taught, draft / WEIGHTS, options, say)["digest"]


def _taught(
    client: Client, options: TrainingOptions, sets: Sequence[note_task.NoteSet]
) -> list[RolloutInfo]:
    """Return finished rollouts that the teacher answered."""
    chance = random.Random(f"teacher {options.seed}")
    instances = [
        note_task.instance(sets, 1 + number % note_task.MOST_HOPS, chance, f"taught-{number}")
        for number in range(options.taught)
    ]
    task = Task("notes", note_task.HANDLER, {}, {}, note_task.MAX_TOKENS, _no_instance, note_task.teach)  # fmt: skip
    with teacher(task, options.seed) as address:
        client.backends.replace(_TEACHER_POOL, [address], seats=64, dialect="prorl")
        found = run_all(client, options, instances, _TEACHER_POOL, f"{options.name}-teacher")
        client.backends.clear(_TEACHER_POOL)
    return found


def _imitate(
    samples: Path, out: Path, options: TrainingOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    command = [TORCH_PYTHON, "-m", "examples.agent_training.imitation", "--samples", str(samples)]
    command += ["--out", str(out), "--seed", str(options.seed), "--epochs", str(options.epochs)]
    line = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("imitation"):
                say(line.strip())
    if process.returncode != 0:
        raise NoBeginning(f"the imitation ended with {process.returncode}: it needs {TORCH_PYTHON} with PyTorch (apt-get install python3-torch)")  # fmt: skip
    made: dict[str, Any] = json.loads(line)
    return made


def _no_instance(chance: random.Random) -> dict[str, Any]:
    raise AssertionError("instances are made with their notes")
