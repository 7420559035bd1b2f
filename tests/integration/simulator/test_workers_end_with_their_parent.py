"""Worker processes of a simulation end with the command that started them, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WITHIN_SECONDS = 120.0
#: Far more simulations than are done while a test looks.
MANY = ("--scale", "quick", "--figure", "8a-left", "--jobs", "2")
COMMANDS = {
    "report": ("simulator", "report", *MANY, "--seeds", "40", "--out", "kept"),
    "evaluation": ("benchmarks.evaluation", *MANY, "--dry", "--kept", "kept/simulated.jsonl"),
    "never_worse": ("benchmarks.never_worse", "--jobs", "2", "--seeds", "9"),
}


class Command:
    """A command of two workers, in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self._said, self._problems = folder / "said", folder / "problems"
        self._kept = folder / "kept" / "simulated.jsonl"
        self._workers: list[psutil.Process] = []
        module, *arguments = COMMANDS[name]
        with self._said.open("wb") as said, self._problems.open("wb") as problems:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=folder, stdout=said,
                stderr=problems, env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )  # fmt: skip

    def kept(self) -> bytes:
        """What it did already, in the file that it goes on from, or on its standard output."""
        return (self._kept if self._kept.exists() else self._said).read_bytes()

    def problems(self) -> str:
        return self._problems.read_text()

    def working(self) -> list[psutil.Process]:
        """Its workers, once something has been simulated."""
        wait_until(lambda: bool(self.kept()) or self.process.poll() is not None)
        assert self.process.poll() is None, self.problems()
        wait_until(lambda: len(self._workers_seen()) == 2)
        self._workers = self._workers_seen()
        return self._workers

    def _workers_seen(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "--multiprocessing-fork" in child.cmdline()]

    def end(self) -> None:
        """Leave nothing behind, whatever the test has found."""
        self.process.kill()
        self.process.wait()
        for worker in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    command = Command(request.param, tmp_path)
    yield command
    command.end()


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def gone(process: psutil.Process) -> bool:
    """Say whether it has ended; the process that adopted it may not have reaped it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_workers_of_a_killed_command_end(command: Command):
    workers = command.working()

    command.process.kill()

    assert command.process.wait(WITHIN_SECONDS) == -signal.SIGKILL
    wait_until(lambda: all(map(gone, workers)))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_to_end_leaves_the_results_so_far_and_no_worker(
    command: Command, ending: signal.Signals
):
    workers = command.working()
    done = command.kept()

    command.process.send_signal(ending)

    code = command.process.wait(WITHIN_SECONDS)
    wait_until(lambda: all(map(gone, workers)))
    assert command.kept().startswith(done)
    if ending is signal.SIGTERM:
        assert code == 143
        assert "Traceback" not in command.problems()
