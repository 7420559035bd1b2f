"""Runner of simulations: one at a time, each in a process of its own (decision 0027).

Rules
1. A conditional update from ``queued`` to ``running`` claims a simulation for one runner.
2. The simulator runs in a process of its own, at the lowest priority, with limits on time and memory,
   and ends with its worker. Other jobs do not wait for it.
3. While it runs, the row gets a heartbeat. A row without one for `SILENT_SECONDS` has lost its runner:
   it is queued again, and fails after `MOST_ATTEMPTS`.
4. A request to cancel, the time limit and the end of the worker end the process; in the last case the
   row is queued again.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final

import msgspec
from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from tangram_web.lib import oom_scores
from tangram_web.simulations.inputs import inflated
from tangram_web.simulations.models import Simulation, SimulationInput, SimulationState

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 60.0
MOST_ATTEMPTS: Final = 2
MOST_MEMORY_BYTES: Final = 4 * 2**30
#: Largest result of the simulator that is stored.
MOST_OUTCOME_BYTES: Final = 16 * 2**20
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "PYTHONPATH")
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)


def is_due() -> bool:
    """Return whether a simulation is queued, or has lost its runner."""
    waiting = Q(state=SimulationState.QUEUED) | Q(
        state=SimulationState.RUNNING, alive_at__lt=_silent_since()
    )
    return Simulation.objects.filter(waiting).exists()


def _silent_since() -> datetime:
    return timezone.now() - timedelta(seconds=SILENT_SECONDS)


def run_next(stop: Event) -> bool:
    """Run the oldest queued simulation; return False when there is none."""
    requeue_abandoned()
    waiting = Simulation.objects.filter(state=SimulationState.QUEUED).order_by("created_at").first()
    if waiting is None:
        return False
    now = timezone.now()
    claimed = Simulation.objects.filter(pk=waiting.pk, state=SimulationState.QUEUED).update(
        state=SimulationState.RUNNING, started_at=now, alive_at=now, attempts=F("attempts") + 1
    )
    if claimed == 1:
        try:
            with tempfile.TemporaryDirectory(prefix="tangram-simulation-") as folder:
                _simulate(waiting, Path(folder), stop)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # A full disk or broken output concerns this simulation alone.
            log.exception("simulation %s could not run", waiting.pk)
            _end(waiting.pk, SimulationState.FAILED, f"it could not run: {error}"[:2000], None)
    return True  # even if another runner has claimed it: more may be queued


def requeue_abandoned() -> None:
    """Queue simulations that lost their runner again, or fail them after `MOST_ATTEMPTS`."""
    abandoned = Simulation.objects.filter(
        state=SimulationState.RUNNING, alive_at__lt=_silent_since()
    )
    abandoned.filter(attempts__gte=MOST_ATTEMPTS).update(
        state=SimulationState.FAILED,
        finished_at=timezone.now(),
        problem="its worker was lost twice",
    )
    abandoned.filter(attempts__lt=MOST_ATTEMPTS).update(state=SimulationState.QUEUED, progress={})


def _simulate(simulation: Simulation, folder: Path, stop: Event) -> None:
    (folder / "request.json").write_bytes(msgspec.json.encode(simulation.request))
    trace = SimulationInput.objects.filter(simulation=simulation).first()
    if trace is not None:
        (folder / "trace").write_bytes(inflated(bytes(trace.content)))
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulator.job", str(folder)],
            cwd=settings.BASE_DIR,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=_limited,
        )
    oom_scores.set_score(oom_scores.NEUTRAL, process.pid)
    try:
        why = _Watch(simulation, process).until_over(stop)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    _end(simulation.pk, *_ending(why, process.returncode, folder))


def child_environment() -> dict[str, str]:
    """Return the environment of a simulator process, without secrets."""
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}


def _limited() -> None:
    """Lower the priority and set limits; runs in the child before the simulator starts."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(19)
    seconds = int(settings.TANGRAM_SIMULATION_SECONDS) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


class _Watch:
    """Reads the progress of a simulator process until it ends or has to end."""

    def __init__(self, simulation: Simulation, process: subprocess.Popen[bytes]) -> None:
        self._simulation = simulation
        self._process = process
        self._until = monotonic() + settings.TANGRAM_SIMULATION_SECONDS
        self._heartbeat_at = 0.0
        self._rest = b""
        request = simulation.request
        self._runs = len(request["policies"]) * len(request["seeds"])
        self._progress: dict[str, Any] = {"runs": self._runs, "runs_done": 0}
        self._seen: list[tuple[str, int]] = []

    def until_over(self, stop: Event) -> str:
        """Return the reason of the end: ``ended``, ``cancelled``, ``too long`` or ``stopped``."""
        out = self._process.stdout
        if out is None:
            return "ended"
        os.set_blocking(out.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not stop.is_set():
                selector.select(timeout=0.2)
                output = out.read()
                if output == b"":
                    return "ended"
                self._take(output or b"")
                if monotonic() > self._until:
                    return "too long"
                if self._cancelled():
                    return "cancelled"
        return "stopped"

    def _take(self, output: bytes) -> None:
        *lines, self._rest = (self._rest + output).split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line)
            run = (report["policy"], report["seed"])
            if run not in self._seen:
                self._seen.append(run)
            self._progress = {**report, "runs": self._runs, "runs_done": len(self._seen) - 1}

    def _cancelled(self) -> bool:
        """Store a heartbeat once a second; return whether the row is cancelled or deleted."""
        if monotonic() - self._heartbeat_at < HEARTBEAT_SECONDS:
            return False
        self._heartbeat_at = monotonic()
        row = Simulation.objects.filter(pk=self._simulation.pk)
        row.update(alive_at=timezone.now(), progress=self._progress)
        return not row.filter(cancel_wished=False).exists()


def _ending(why: str, code: int, folder: Path) -> tuple[SimulationState, str, Any]:
    if why == "stopped":
        return SimulationState.QUEUED, "", None
    if why == "cancelled":
        return SimulationState.CANCELLED, "", None
    limit = f"it took longer than {settings.TANGRAM_SIMULATION_SECONDS:g} s; request less"
    if why == "too long":
        return SimulationState.FAILED, limit, None
    result = folder / "result.json"
    if code == 0 and result.exists():
        if result.stat().st_size > MOST_OUTCOME_BYTES:
            return (
                SimulationState.FAILED,
                "its result is too large to be stored; request less",
                None,
            )
        return SimulationState.FINISHED, "", msgspec.json.decode(result.read_bytes())
    errors = (folder / "errors").read_text(errors="replace").strip().splitlines()
    if errors:
        return SimulationState.FAILED, errors[-1][:2000], None
    return SimulationState.FAILED, f"its process ended with {code}: out of memory or time", None


def _end(key: str, state: SimulationState, problem: str, outcome: Any) -> None:
    finished = None if state is SimulationState.QUEUED else timezone.now()
    Simulation.objects.filter(pk=key, state=SimulationState.RUNNING).update(
        state=state, problem=problem, outcome=outcome, finished_at=finished
    )
