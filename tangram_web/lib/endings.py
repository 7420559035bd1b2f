"""How actions end as pages count it: by outcome, and commands whose exit code is not 0 apart.

The outcome of a command that ran to its end is ``completed`` whatever its exit code, which is data for
its trainer. A page that counts outcomes must tell the two apart, or a task in which every command fails
looks healthy.
"""

from __future__ import annotations

from typing import Final

import msgspec

from domain.action import Outcome

#: Completed with an exit code that is not 0.
FAILED: Final = "failed"
#: All endings, in the order in which pages list them.
ENDINGS: Final = (
    Outcome.COMPLETED.value,
    FAILED,
    *(outcome.value for outcome in Outcome if outcome is not Outcome.COMPLETED),
)


def ending_of(outcome: Outcome, exit_code: int | None) -> str:
    """Return how an action ended: its outcome, or `FAILED`."""
    return FAILED if outcome is Outcome.COMPLETED and exit_code else str(outcome)


class _Exit(msgspec.Struct):
    """The part of a result that has the exit code."""

    exit_code: int | None = None


_exit = msgspec.msgpack.Decoder(_Exit)


def exit_code_of(result: msgspec.Raw) -> int | None:
    """Return the exit code of a reported result (msgpack); None for one without."""
    try:
        return _exit.decode(result).exit_code if result else None
    except msgspec.DecodeError:
        return None
