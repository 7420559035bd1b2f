"""WirePriorities: the integer that the engine of a worker gets with a generation.

A rank is one of 32 buckets in log seconds, lower first, and the action's priority ranks before it (`placement.priorities`). vLLM
and SGLang get it; SGLang must be started so that lower integers are first. Other engines have none, and the order is that of
the scheduler's queues, which hold back what exceeds the slots of a worker.

Whether a worker takes priorities, and which are first, is registered with it by probes (`FleetWorker.priorities`); one that ignores
or refuses them gets none. One that was not probed is asked: vLLM without ``--scheduling-policy priority`` and SGLang with
``--abort-on-priority-when-disabled`` refuse one. Then the request is sent again without, and the worker gets none for
`REFUSED_SECONDS`.
"""

from __future__ import annotations

from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Final

from domain.fleets import FleetEngine, FleetWorker, PriorityUse

if TYPE_CHECKING:
    from placement.priorities import PriorityWire

#: A worker that refused a priority is asked again after this time: it may have been started with priorities.
REFUSED_SECONDS: Final = 600.0
_NONE: Final = frozenset({PriorityUse.IGNORED, PriorityUse.REFUSED})
_REFUSAL_STATUS: Final = frozenset({400, 501, 503})


class WirePriorities:
    """Priorities for the workers of one process."""

    def __init__(self) -> None:
        #: Address of a worker → until when it gets no priority.
        self._refused: dict[str, float] = {}

    def integer(
        self, engine: FleetEngine, worker: FleetWorker, rank: float, priority: int
    ) -> int | None:
        """Return the integer for a worker; None: it takes none. ``priority``: of the action, greater first."""
        if worker.priorities in _NONE or self.are_refused(worker.url):
            return None
        wire = _wires().get((engine, worker.priorities is PriorityUse.GREATER_FIRST))
        return None if wire is None else wire.integer(rank, priority)

    def are_refused(self, url: str) -> bool:
        """Return whether the worker has refused a priority lately."""
        until = self._refused.get(url)
        if until is not None and monotonic() >= until:
            del self._refused[url]
            return False
        return until is not None

    def note_refusal(self, url: str) -> None:
        """Note that the worker refuses priorities."""
        self._refused[url] = monotonic() + REFUSED_SECONDS


def refuses_priority(status: int, content: bytes) -> bool:
    """Return whether an answer refuses a request for its priority.

    vLLM: "Got priority … but Priority scheduling is not enabled"; SGLang: "Using priority is disabled for this server".
    """
    words = content[:4096].lower()
    return (
        status in _REFUSAL_STATUS
        and b"priority" in words
        and (b"disabled" in words or b"not enabled" in words)
    )


@cache
def _wires() -> dict[tuple[FleetEngine, bool], PriorityWire]:
    """Return the wires by engine, and whether the greater integer is first."""
    # Imported here: numpy is loaded where a fleet is used, and nowhere else.
    from placement.priorities import SGLANG, SGLANG_GREATER_FIRST, VLLM

    return {
        (FleetEngine.VLLM, False): VLLM,
        (FleetEngine.SGLANG, False): SGLANG,
        (FleetEngine.SGLANG, True): SGLANG_GREATER_FIRST,
    }
