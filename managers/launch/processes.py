"""Launcher ``processes``: node workers as processes of the keeper's machine, for a large machine that is divided.

Options of a group: ``folder`` (of the files of instances), ``own_cores`` (``false``: instances are not pinned, and may offer
more cores than the machine has; for trials), ``declared_gpus`` (the machine has so many that are only declared; for trials).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from managers.launch.launcher import CALL_SECONDS, LaunchError
from managers.launch.machines import FOLDER, MachinesLauncher, check_options, count_of, yes_or_no

OPTIONS: Final = ("folder", "own_cores", "declared_gpus")


class ThisMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self.name, self.python = os.uname().nodename, sys.executable

    def run(self, source: str) -> str:
        """Run a Python program and return its output. Raises LaunchError."""
        try:
            done = subprocess.run(
                [self.python, "-I", "-"],
                input=source,
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchError(
                f"{self.name} does not run the program that keeps node workers: {error}; look at its load and its disk"
            ) from error
        if done.returncode:
            raise LaunchError(f"{self.name}: {done.stderr.strip()[-500:]}; is its Python complete?")
        return done.stdout


def make(options: Mapping[str, str]) -> MachinesLauncher:
    """Make the launcher of a group. Raises InvalidRequest."""
    check_options(options, OPTIONS)
    own_cores = yes_or_no(options, "own_cores", default=True)
    return MachinesLauncher(
        [ThisMachine()],
        options.get("folder", FOLDER),
        own_cores=own_cores,
        declared_gpus=count_of(options, "declared_gpus"),
    )
