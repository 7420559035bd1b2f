"""Retries of a worker's calls to its port: when the next one is, and when there is none.

Rules
1. Only an error that says a retry may succeed (`CapacityError`) is retried. The time limit of a stage does not count
   meanwhile: the lack is Tangram's.
2. Delays double from `FIRST_SECONDS` to `MOST_SECONDS`, and are never shorter than the error asks for. They are spread by
   the name of the rollout, so that a thousand of them do not return at once.
3. After `PATIENCE_SECONDS` of retries the rollout is infra_failed.
"""

from __future__ import annotations

import zlib
from typing import Final

FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 900.0
#: Share of a delay that the name of a rollout decides.
_SPREAD: Final = 0.25


def delay_of(failures: int, rollout: str, least_seconds: float = 0.0) -> float:
    """Return the seconds to wait after so many failures, counted from 1."""
    doubled: float = FIRST_SECONDS * 2.0 ** min(failures - 1, 20)
    spread = zlib.crc32(f"{rollout}/{failures}".encode()) / 0xFFFFFFFF
    return max(min(doubled, MOST_SECONDS), least_seconds) * (1.0 + _SPREAD * spread)


def is_over(waited_seconds: float) -> bool:
    """Say whether so long a time of retries ends the rollout."""
    return waited_seconds >= PATIENCE_SECONDS
