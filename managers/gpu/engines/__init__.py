"""Engines: they restore a service into GPU memory and evict it.

One `Server` is one service on one chunk. `tests/conformance/engine.py` are these rules as tests.

Rules
1. `restore` returns when the service answers: its warm-up was answered with 2xx, and as after the
   first restore where the service declares what does not change (I12). It raises EngineFailed when
   that takes longer than declared or the server dies, OutOfMemory when memory is short, and
   AnswersChanged when it answers otherwise; then nothing of it is left. A service that answers is not
   started again.
2. A cancelled `restore` or `prepare` leaves nothing. An engine that keeps no copy raises EngineFailed
   from `prepare`.
3. `evict` returns when, as far as the engine knows, no GPU memory is held. It returns `EVICTED` when
   a copy is in host memory, `STOPPED` when nothing is kept. Evicting nothing is no error.
4. `alive` is cheap, and false when no request can be answered.
5. An engine ends only what it created. The caller measures whether GPU memory is really free (I11).
"""

from __future__ import annotations

from typing import Final, Protocol

from domain.errors import TangramError
from domain.services import ServiceEvent

_MEMORY_ADVICE: Final = "declare memory_bytes of what it really takes, or more GPUs"


class EngineFailed(TangramError):
    """The engine could not restore the service."""

    permanent = False


class OutOfMemory(EngineFailed):
    """There was not enough GPU memory for the service."""


class AnswersChanged(EngineFailed):
    """The restored service does not answer as before its eviction."""


def failed_with(words: str) -> EngineFailed:
    """Return the failure that an engine's output describes, with advice where there is any."""
    if "out of memory" not in words.lower():
        return EngineFailed(words)
    advice = "" if "declare memory_bytes" in words else f"; {_MEMORY_ADVICE}"
    return OutOfMemory(f"{words}{advice}")


class Server(Protocol):
    """A service on a chunk, as an engine runs it."""

    @property
    def base_url(self) -> str:
        """Its address; empty while it does not answer."""

    @property
    def alive(self) -> bool:
        """It answered once and has not ended since."""

    async def restore(self) -> None:
        """Restore it into GPU memory and warm it up. Raises EngineFailed."""

    async def prepare(self) -> None:
        """Load its copy into host memory, as if restored and evicted. Raises EngineFailed."""

    async def evict(self) -> ServiceEvent:
        """Free its GPU memory."""

    async def close(self) -> None:
        """End it, whatever its state."""
