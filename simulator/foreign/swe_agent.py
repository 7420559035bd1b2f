"""Trajectories of SWE-agent: `.traj` files, one JSON object each.

    {"trajectory": [{"action": "ls\\n", "observation": "setup.py", "response": "Let me look.",
                     "thought": "Let me look.", "execution_time": 0.4, "state": {…}}],
     "info": {"exit_status": "submitted", "model_stats": {"tokens_sent": 9000, "tokens_received": 300}}}

Source: SWE-agent, documentation "Output files", and its `TrajectoryStep`. ``execution_time`` is there since version 1;
older files, and forks of them, have none. A file with one such object on each line is read, too. Not in any of them:
when the model was asked and how long it took, CPU, memory.

A step whose action is empty called no tool: its answer is thinking before the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.foreign.agents import AgentRecorder, AgentStep
from simulator.foreign.lines import (
    each_line,
    json_document,
    json_object,
    number_field,
    shown,
    text_field,
)
from simulator.foreign.modelled import Modelled, tokens_of
from simulator.foreign.trace import BadLines, Trace
from tangram_client.traces.recording import Recording, TraceError

#: Files that hold one trajectory a line.
LINES: Final = frozenset({".jsonl", ".ndjson"})

#: From a trajectory, where it stands, and its name where its file has one, to a recording.
Record = Callable[[Mapping[str, Any], str, str], Recording]


def read_swe_agent(paths: Sequence[Path], bad: BadLines, modelled: Modelled) -> Trace:
    """Read trajectories of SWE-agent. Raises TraceError naming the file and the field at fault."""
    recorder = AgentRecorder(modelled)

    def record(body: Mapping[str, Any], where: str, name: str) -> Recording:
        return _recording(body, where, name, recorder)

    recordings = tuple(each for path in paths for each in trajectories(path, record, bad))
    return Trace(
        source="", format="swe-agent", recordings=recordings, assumed=recorder.said(),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def trajectories(path: Path, record: Record, bad: BadLines) -> Iterator[Recording]:
    """Yield the trajectory that a file is, or one for each line of a `.jsonl`; bad ones go to ``bad``."""
    if path.suffix in LINES:
        yield from each_line(
            path, lambda text, where: record(json_object(text, where), where, ""), bad
        )
        return
    name = path.name.removesuffix(".json").removesuffix(".traj")
    try:
        found = record(json_document(path), str(path), name)
    except TraceError as error:
        bad.take(error)
        return
    yield found


def _recording(
    body: Mapping[str, Any], where: str, name: str, recorder: AgentRecorder
) -> Recording:
    steps = body.get("trajectory")
    if not isinstance(steps, list) or not steps:
        raise TraceError(f"{where}: trajectory must be a list with at least one step")
    found = recorder.record(
        name or str(body.get("instance_id") or where),
        [_step(step, f"{where}: trajectory[{at}]") for at, step in enumerate(steps)],
        counted_tokens=_counted_tokens(body, where),
    )
    if found is None:
        raise TraceError(f"{where}: trajectory has no step with an action")
    return found


def _step(step: Any, where: str) -> AgentStep:
    if not isinstance(step, Mapping):
        raise TraceError(f"{where} must be a JSON object, not {shown(step)}")
    timed = step.get("execution_time") is not None
    thought = text_field(step, "thought", where, "")
    return AgentStep(
        tokens=tokens_of(text_field(step, "response", where, thought)),
        command=text_field(step, "action", where),
        tool_seconds=number_field(step, "execution_time", where) if timed else None,
        output_characters=len(text_field(step, "observation", where, "")),
    )


def _counted_tokens(body: Mapping[str, Any], where: str) -> float | None:
    """Return the tokens of all answers as the model counted them; None when it did not."""
    info = body.get("info")
    stats = info.get("model_stats") if isinstance(info, Mapping) else None
    if not isinstance(stats, Mapping) or not stats.get("tokens_received"):
        return None
    return number_field(stats, "tokens_received", f"{where}: info.model_stats")
