"""What a benchmark does when it is ended: as at Ctrl-C, the processes that it started end with it."""

from __future__ import annotations

import signal
import sys


def end_on_sigterm() -> None:
    """Let SIGTERM end the program by SystemExit, so that its context managers and `finally` clauses run."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
