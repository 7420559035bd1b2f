"""Our own recordings, and our journal as recordings.

A journal has more than a recording: declared costs, elasticity, the kind of every action. ``sim --workload recorded``
plays all of that; as a recording, its commands can be resampled and mixed with a reward like those of any other agent.
Rewards, actions without cores, and actions that did not end are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from domain.codec import JournalEntry
from domain.decisions import Finish
from domain.errors import InvalidRequest
from domain.ids import ActionId
from simulator.foreign.lines import decoded, each_line, numbered_lines
from simulator.foreign.modelled import Modelled
from simulator.foreign.trace import BadLines, Trace
from simulator.traces import parse_line
from simulator.workloads.program import Act
from simulator.workloads.recorded import Recorded, parse_entry, recorded
from tangram_client.traces.recording import RecordedStep, Recording, TraceError


def read_recordings_of_ours(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read our recordings as strictly as `simulator.traces` does. Raises TraceError."""
    found = [each for path in paths for each in each_line(path, _recording, bad)]
    return Trace(
        source="", format="tangram", recordings=tuple(found),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _recording(text: str, where: str) -> Recording:
    return parse_line(text.encode(), where)


def read_journal_as_recordings(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read journals, each as a window of its own. Raises TraceError."""
    found: list[Recording] = []
    left_out = overlapping = rewards = 0
    for path in paths:
        try:
            window = recorded(_entries(path, bad))
        except InvalidRequest as error:
            raise TraceError(f"{path}: {error}") from None
        made = recordings_of(window)
        found += made.recordings
        left_out += window.left_out + made.without_cores
        rewards += made.rewards
        overlapping += window.overlapping
    said = ["durations are on one core, by the declared elasticity where an action had more"]
    if left_out:
        said.append(f"{left_out} actions did not run to their end, or need no core: left out")
    if rewards:
        said.append(f"{rewards} rewards are left out: a simulation adds its own to each trajectory")
    if overlapping:
        said.append(f"{overlapping} actions overlapped one of their trajectory: played after it")
    return Trace(
        source="", format="journal", recordings=tuple(found), assumed=tuple(said),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _entries(path: Path, bad: BadLines) -> Iterator[JournalEntry]:
    last = 0.0
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            decoded(line, where)
            entry = parse_entry(line, where)
            if entry.at < last:
                raise TraceError(f"{where}: {entry.at:g} s comes before the line above it")
        except TraceError as error:
            bad.take(error)
            continue
        last = entry.at
        yield entry


class WindowRecordings(NamedTuple):
    """The trajectories of a window, and the numbers of actions that are not among their steps."""

    recordings: list[Recording]
    without_cores: int
    rewards: int


def recordings_of(window: Recorded) -> WindowRecordings:
    """Return the trajectories of a window, as recordings of agents.

    The first think time of a trajectory is 0: what a window has there is when the trajectory came.
    """
    found: list[Recording] = []
    without_cores = rewards = 0
    for name, moves in window.rollouts.items():
        steps: list[RecordedStep] = []
        memory_bytes = 0
        for move in moves:
            action = move.act.action
            if "cpu" not in action.cost:
                without_cores += 1
            elif action.reward is not None or action.family == "reward":
                rewards += 1
            else:
                thought = move.think_seconds if steps else 0.0
                steps.append(_step(move.act, thought, window.measured))
            if action.environment is not None:
                memory_bytes = max(memory_bytes, action.environment.memory_bytes)
        if steps:
            name_of = moves[0].act.action.trajectory or name
            found.append(Recording(name_of, tuple(steps), memory_bytes))
    return WindowRecordings(found, without_cores, rewards)


def _step(act: Act, thought: float, measured: dict[ActionId, Finish]) -> RecordedStep:
    finish = measured.get(act.action.id)
    cores = 0.0
    if finish is not None and finish.used is not None and finish.timing.execution_seconds > 0:
        cores = finish.used.cpu_seconds / finish.timing.execution_seconds
    return RecordedStep(
        think_seconds=thought,
        duration_seconds=act.work.base_seconds,
        cpu_cores=cores,
        family=act.action.family or str(act.action.kind),
    )
