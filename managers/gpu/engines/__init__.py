"""Engines: what brings a service into GPU memory and out of it again.

One `Server` is one service on one chunk. `tests/conformance/engine.py` are these rules as tests.

Rules
1. `restore` returns when the service answers: its warm-up was answered with 2xx, and as after the
   first restore where the service declares what does not change (I12). It raises EngineFailed when
   that takes longer than declared or the server dies, OutOfMemory when there was not enough, and
   AnswersChanged when it answers otherwise; then nothing of it is left. One that is there already
   is not started again.
2. A cancelled `restore` or `prepare` leaves nothing. An engine that keeps no copy prepares nothing, and
   says so with EngineFailed.
3. `evict` returns when, as far as the engine can tell, no GPU memory is held. It says what is left:
   `EVICTED` keeps a copy in host memory, `STOPPED` keeps nothing. Evicting nothing is no error.
4. `alive` is cheap and says whether there is any use in sending a request.
5. An engine ends only what it created. That GPU memory is really free is measured by others (I11).
"""

from __future__ import annotations

from typing import Final, Protocol

from domain.errors import TangramError
from domain.services import ServiceEvent

_MEMORY_ADVICE: Final = "declare memory_bytes of what it really takes, or more GPUs"


class EngineFailed(TangramError):
    """The engine could not bring the service into GPU memory."""

    permanent = False


class OutOfMemory(EngineFailed):
    """There was not enough GPU memory to bring the service in."""


class AnswersChanged(EngineFailed):
    """The restored service does not answer as before its eviction."""


def failed_with(words: str) -> EngineFailed:
    """Return the failure that an engine's own words tell of, with advice where there is any."""
    if "out of memory" not in words.lower():
        return EngineFailed(words)
    advice = "" if "declare memory_bytes" in words else f"; {_MEMORY_ADVICE}"
    return OutOfMemory(f"{words}{advice}")


class Server(Protocol):
    """A service on a chunk, as an engine runs it."""

    @property
    def base_url(self) -> str:
        """Where it answers; empty while it does not."""

    @property
    def alive(self) -> bool:
        """It answered once and has not ended since."""

    async def restore(self) -> None:
        """Bring it into GPU memory, warm. Raises EngineFailed."""

    async def prepare(self) -> None:
        """Put its copy into host memory, as if it was restored and evicted. Raises EngineFailed."""

    async def evict(self) -> ServiceEvent:
        """Free its GPU memory."""

    async def close(self) -> None:
        """End it, whatever it does."""
