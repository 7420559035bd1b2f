"""Runner of simulations: one at a time, each in a process of its own (decision 0027).

Rules
1. Whoever changes ``queued`` to ``running`` by a conditional update plays it; nobody else does.
2. The simulator runs in a process of its own, at the lowest priority, with limits on its time and
   memory, and dies with us. Rows, frames and webhooks of this worker do not wait for it.
3. While it runs the row shows life. A row that shows none for `SILENT_SECONDS` lost its runner: it
   waits again, and fails after `MOST_ATTEMPTS`.
4. A wish to cancel, the time limit and the end of this worker end the process; in the last case the
   row waits again.
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

from tangram_web.simulations.inputs import inflated
from tangram_web.simulations.models import Simulation, SimulationInput, SimulationState

log = logging.getLogger(__name__)

SHOW_LIFE_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 60.0
MOST_ATTEMPTS: Final = 2
MOST_MEMORY_BYTES: Final = 4 * 2**30
#: The child's outcome may not be larger than this.
MOST_OUTCOME_BYTES: Final = 16 * 2**20
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "PYTHONPATH")
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)


def is_due() -> bool:
    """Return whether a simulation waits, or lost its runner."""
    waiting = Q(state=SimulationState.QUEUED) | Q(
        state=SimulationState.RUNNING, alive_at__lt=_silent_since()
    )
    return Simulation.objects.filter(waiting).exists()


def _silent_since() -> datetime:
    return timezone.now() - timedelta(seconds=SILENT_SECONDS)


def run_next(stop: Event) -> bool:
    """Play the oldest simulation that waits; False when there is none."""
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
                _play(waiting, Path(folder), stop)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # A full disk, or words that nobody understands: no matter of the others in this process.
            log.exception("simulation %s could not be played", waiting.pk)
            _end(
                waiting.pk, SimulationState.FAILED, f"it could not be played: {error}"[:2000], None
            )
    return True  # perhaps another one got there first; there may be more work


def requeue_abandoned() -> None:
    """Let simulations whose runner died wait again, or fail when that happened before."""
    abandoned = Simulation.objects.filter(
        state=SimulationState.RUNNING, alive_at__lt=_silent_since()
    )
    abandoned.filter(attempts__gte=MOST_ATTEMPTS).update(
        state=SimulationState.FAILED,
        finished_at=timezone.now(),
        problem="its process was lost, twice",
    )
    abandoned.filter(attempts__lt=MOST_ATTEMPTS).update(state=SimulationState.QUEUED, progress={})


def _play(simulation: Simulation, folder: Path, stop: Event) -> None:
    (folder / "request.json").write_bytes(msgspec.json.encode(simulation.request))
    trace = SimulationInput.objects.filter(simulation=simulation).first()
    if trace is not None:
        (folder / "trace").write_bytes(inflated(bytes(trace.content)))
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulator.job", str(folder)],
            cwd=settings.BASE_DIR,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=_limited,
        )
    try:
        why = _Watch(simulation, process).until_over(stop)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    _end(simulation.pk, *_ending(why, process.returncode, folder))


def _limited() -> None:
    """Make this process modest; runs in the child before it becomes the simulator."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(19)
    seconds = int(settings.TANGRAM_SIMULATION_SECONDS) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


class _Watch:
    """Follows a process that plays, and says why it is over."""

    def __init__(self, simulation: Simulation, process: subprocess.Popen[bytes]) -> None:
        self._simulation = simulation
        self._process = process
        self._until = monotonic() + settings.TANGRAM_SIMULATION_SECONDS
        self._shown_at = 0.0
        self._rest = b""
        request = simulation.request
        self._runs = len(request["policies"]) * len(request["seeds"])
        self._told: dict[str, Any] = {"runs": self._runs, "runs_done": 0}
        self._seen: list[tuple[str, int]] = []

    def until_over(self, stop: Event) -> str:
        """Return ``ended``, ``cancelled``, ``too long`` or ``stopped``."""
        out = self._process.stdout
        if out is None:
            return "ended"
        os.set_blocking(out.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not stop.is_set():
                selector.select(timeout=0.2)
                said = out.read()
                if said == b"":
                    return "ended"
                self._take(said or b"")
                if monotonic() > self._until:
                    return "too long"
                if self._cancelled():
                    return "cancelled"
        return "stopped"

    def _take(self, said: bytes) -> None:
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            told = msgspec.json.decode(line)
            run = (told["policy"], told["seed"])
            if run not in self._seen:
                self._seen.append(run)
            self._told = {**told, "runs": self._runs, "runs_done": len(self._seen) - 1}

    def _cancelled(self) -> bool:
        """Show life once a second; the row may have been cancelled, or be gone."""
        if monotonic() - self._shown_at < SHOW_LIFE_SECONDS:
            return False
        self._shown_at = monotonic()
        row = Simulation.objects.filter(pk=self._simulation.pk)
        row.update(alive_at=timezone.now(), progress=self._told)
        return not row.filter(cancel_wished=False).exists()


def _ending(why: str, code: int, folder: Path) -> tuple[SimulationState, str, Any]:
    if why == "stopped":
        return SimulationState.QUEUED, "", None
    if why == "cancelled":
        return SimulationState.CANCELLED, "", None
    limit = f"it took longer than {settings.TANGRAM_SIMULATION_SECONDS:g} s; ask for less"
    if why == "too long":
        return SimulationState.FAILED, limit, None
    result = folder / "result.json"
    if code == 0 and result.exists():
        if result.stat().st_size > MOST_OUTCOME_BYTES:
            return (
                SimulationState.FAILED,
                "what came out is too large to be kept; ask for less",
                None,
            )
        return SimulationState.FINISHED, "", msgspec.json.decode(result.read_bytes())
    said = (folder / "errors").read_text(errors="replace").strip().splitlines()
    if said:
        return SimulationState.FAILED, said[-1][:2000], None
    return SimulationState.FAILED, f"its process ended with {code}: out of memory or time", None


def _end(key: str, state: SimulationState, problem: str, outcome: Any) -> None:
    finished = None if state is SimulationState.QUEUED else timezone.now()
    Simulation.objects.filter(pk=key, state=SimulationState.RUNNING).update(
        state=state, problem=problem, outcome=outcome, finished_at=finished
    )
