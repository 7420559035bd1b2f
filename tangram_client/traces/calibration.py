"""A calibration: what the path of an action cost on one machine at one time, measured by short replays (probes).

`tangram calibrate` measures and stores it in Tangram's home; ``sim --as-replay`` reads it and plays the same probes in
virtual time to find the costs of the machine. It holds each action as it was measured, so that a later version can
read more from it.

    alone   one trajectory at a time, short commands: the hops of the path, the environment, the process
    crowd   many trajectories at once that never think: the CPU that Tangram takes for an action
    busy    commands that burn CPU on a whole and on a shared core: what else runs on the machine
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tangram_client.traces.recording import RecordedStep, Recording, TraceError

#: Version of the file.
FORMAT: Final = 1
FILE: Final = "replay-calibration.json"
ROUNDS: Final = 3
#: Older than that, a calibration says little about the machine now.
FRESH_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True)
class ReplayProbe:
    """One short replay."""

    name: str
    recordings: tuple[Recording, ...]
    concurrency: int


def _repeated(name: str, count: int, *steps: RecordedStep) -> tuple[Recording, ...]:
    return tuple(Recording(f"{name}-{number}", steps, 0) for number in range(count))


_SLEEP: Final = RecordedStep(0.05, 0.02, 0.1, "probe")
_LIGHT: Final = RecordedStep(0.05, 0.1, 0.1, "probe")
_NOW: Final = RecordedStep(0.0, 0.002, 0.1, "probe")
PROBES: Final = (
    ReplayProbe("alone", _repeated("alone", 3, *[_SLEEP] * 5, *[_LIGHT] * 3), 1),
    ReplayProbe("crowd", _repeated("crowd", 12, *[_NOW] * 8), 12),
    ReplayProbe("busy", (
        *_repeated("whole", 1, *[RecordedStep(0.1, 1.0, 1.0, "probe")] * 3),
        *_repeated("light", 1, *[RecordedStep(0.1, 1.0, 0.45, "probe")] * 3),
    ), 2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbedAction:
    """One action of a probe, as measured; seconds."""

    #: It is the first of its trajectory.
    first: bool
    #: From the submission to the answer, as the trainer saw it.
    round_trip_seconds: float
    queue_seconds: float
    overhead_seconds: float
    execution_seconds: float
    #: What its command was asked to take on free cores.
    asked_seconds: float
    cores: float

    @property
    def act_seconds(self) -> float:
        """Return its completion time."""
        return self.queue_seconds + self.overhead_seconds + self.execution_seconds


@dataclass(frozen=True)
class ProbeRun:
    """One probe as it was measured."""

    probe: str
    round: int
    wall_seconds: float
    actions: tuple[ProbedAction, ...]


@dataclass(frozen=True)
class MeasuredNode:
    """A node: its cores, and the cores beside these that it keeps for Tangram and light actions."""

    name: str
    cores: float
    kept: int


@dataclass(frozen=True)
class MachineIdentity:
    """The machine that measured, as far as costs depend on it."""

    host: str
    cpu: str
    cores: int

    @classmethod
    def this(cls) -> MachineIdentity:
        """Describe this machine."""
        return cls(socket.gethostname(), _cpu(), len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class MachineCalibration:
    """Everything that was measured, and on what."""

    #: UTC, ISO 8601.
    measured_at: str
    machine: MachineIdentity
    #: Of the server.
    version: str
    policy: str
    nodes: tuple[MeasuredNode, ...]
    runs: tuple[ProbeRun, ...]

    def age_seconds(self, now: datetime) -> float:
        """Return the age of the measurement at ``now``, which has a time zone."""
        return (now - datetime.fromisoformat(self.measured_at)).total_seconds()

    def of(self, probe: str, number: int | None = None) -> list[ProbeRun]:
        """Return the runs of a probe: of one round, or of all."""
        return [run for run in self.runs if run.probe == probe and number in (None, run.round)]

    @property
    def rounds(self) -> list[int]:
        """Return the numbers of the rounds."""
        return sorted({run.round for run in self.runs})


def calibration_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where calibrations are stored: Tangram's home."""
    env = os.environ if environ is None else environ
    home = env.get("TANGRAM_HOME") or "~/.local/share/tangram"
    return Path(home).expanduser() / FILE


def write_calibration(calibration: MachineCalibration, path: Path) -> None:
    """Store a calibration in place of the one before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"format": FORMAT, **asdict(calibration)}, indent=1) + "\n")
    part.replace(path)


def read_calibration(path: Path) -> MachineCalibration | None:
    """Read a calibration; None when there is none. Raises TraceError naming the file and what is wrong."""
    try:
        body = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); calibrate once more") from None
    if not isinstance(body, Mapping) or body.get("format") != FORMAT:
        raise TraceError(f"{path}: has another format; calibrate once more")
    try:
        return _calibration(body)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: is incomplete ({error!r}); calibrate once more") from None


def _calibration(body: Mapping[str, Any]) -> MachineCalibration:
    found = MachineCalibration(
        measured_at=body["measured_at"],
        machine=MachineIdentity(**body["machine"]),
        version=body["version"],
        policy=body["policy"],
        nodes=tuple(MeasuredNode(**node) for node in body["nodes"]),
        runs=tuple(
            ProbeRun(**{**run, "actions": tuple(ProbedAction(**each) for each in run["actions"])})
            for run in body["runs"]
        ),
    )
    datetime.fromisoformat(found.measured_at)
    for probe in PROBES:
        for number in found.rounds:
            if not any(run.actions for run in found.of(probe.name, number)):
                raise ValueError(f"round {number} has no action of probe {probe.name}")
    if not found.runs or not found.nodes:
        raise ValueError("no runs or no nodes")
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor())
