"""A wall clock that steps for the processes of a system, and not for the rest of the machine."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SHIM = Path(__file__).with_name("stepped_clock.c")


class SteppedClock:
    """The clock of every program that is started with `environment`: Redis as well as ours."""

    def __init__(self, directory: Path) -> None:
        """Build what is preloaded. Needs a C compiler."""
        self._library = directory / "stepped_clock.so"
        self._ahead = directory / "ahead"
        subprocess.run(
            ("cc", "-O2", "-shared", "-fPIC", "-o", self._library, SHIM, "-ldl"), check=True
        )
        self._ahead.write_bytes(struct.pack("=q", 0))

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for a program with this clock."""
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._ahead)}

    def step_to(self, seconds: int) -> None:
        """Be ``seconds`` ahead of (or, below 0, behind) the true clock, in all processes at once."""
        with self._ahead.open("r+b") as file:  # the mapped file itself: never another in its place
            os.pwrite(file.fileno(), struct.pack("=q", seconds), 0)
