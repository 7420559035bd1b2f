"""What the one who started Tangram sees: a line for each step, with the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Console:
    """Writes steps as they are done; on a terminal, also what is being waited for."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._began = clock()
        self._is_terminal = out.isatty()
        self._turns = 0

    def step(self, text: str) -> None:
        """Say that something is done."""
        self._write(f"{self._elapsed()}  {text}\n")

    def waiting(self, text: str) -> None:
        """Say what is going on, in a line that the next one replaces."""
        if self._is_terminal:
            self._turns += 1
            spinner = _SPINNER[self._turns % len(_SPINNER)]
            self._write(f"{self._elapsed()}  {spinner} {text}")

    def say(self, text: str) -> None:
        """Write text as it is."""
        self._write(f"{text}\n")

    def _elapsed(self) -> str:
        return f"{self._clock() - self._began:6.1f} s"

    def _write(self, text: str) -> None:
        self._out.write(f"\r\033[K{text}" if self._is_terminal else text)
        self._out.flush()
