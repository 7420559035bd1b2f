"""What the exit code of a command means, by the conventions of shells."""

from __future__ import annotations

import signal
from typing import Final

_KNOWN: Final = {
    124: "stopped by timeout",
    125: "the program that starts it failed",
    126: "it cannot be executed",
    127: "the command was not found",
}


def meaning_of(code: int | None) -> str:
    """Return the meaning of an exit code; empty for 0, and for codes that each program defines itself."""
    if code is None:
        return ""
    number = code - 128 if code > 128 else -code
    try:
        return (
            f"killed by signal {number} ({signal.Signals(number).name})"
            if number > 0
            else _KNOWN.get(code, "")
        )
    except ValueError:
        return _KNOWN.get(code, "")
