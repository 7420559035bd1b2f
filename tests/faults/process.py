"""One process of a system under test: started, stopped and killed by its test alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tangram_web.supervisor.children import Program
from tests.faults.code_trees import PRESENT, CodeTree

END_WITHIN_SECONDS = 240.0


class Part:
    """One program of the system."""

    def __init__(self, program: Program, log: Path, code: CodeTree = PRESENT) -> None:
        self.name = program.name
        self.log = log
        #: Its next start is one of this version.
        self.code = code
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of its present life."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin a new life."""
        assert not self.alive
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.code.command(self._program.command), cwd=self.code.folder, stdout=log, stderr=log,
                env={**os.environ, **self._program.environment}, start_new_session=True,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.alive:
            self.signal(signal.SIGTERM)
            self.wait()

    def wait(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(END_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
