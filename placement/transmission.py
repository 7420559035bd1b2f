"""The transmission scheduler: which wanted moves start, and what becomes of those that run (heddle, §5.3).

Rules
1. Longest first. No two moves share a worker, as source or target; one that would is skipped until later.
2. A move is *planned* when it is returned, and *begun* when its transfer was reported to have begun. A planned one is dropped when
   its trajectory's tool returns; so is one whose begin is not reported within `PLANNED_SECONDS`.
3. The tool returns during a transfer: the request waits for the rest of it if that is shorter than to fill the cache
   again on the target, and never longer than the latter takes. Else the target fills its cache, and the transfer's end is ignored.
4. A transfer is *void* when its trajectory finished, a worker of it was lost, or got other weights. Nothing follows from its
   end; its workers stay taken until then, or for `_OVERDUE` times the expected seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final

import msgspec

from placement.facts import Move

#: A planned move that has not begun after so long is dropped.
PLANNED_SECONDS: Final = 10.0
_OVERDUE: Final = 10.0
_LEAST_OVERDUE_SECONDS: Final = 60.0


class CacheTransfer(msgspec.Struct, omit_defaults=True):
    """A move that is planned or runs."""

    move: Move
    planned_at: float
    #: Expected seconds of the transfer.
    seconds: float
    began_at: float | None = None
    void: bool = False

    @property
    def expires_at(self) -> float:
        """Return until when it takes its workers at most."""
        if self.began_at is None:
            return self.planned_at + PLANNED_SECONDS
        return self.began_at + max(_LEAST_OVERDUE_SECONDS, _OVERDUE * self.seconds)


class TransmissionMemory(msgspec.Struct, frozen=True):
    """What a scheduler remembers."""

    wanted: list[Move]
    transfers: list[CacheTransfer]


class TransmissionScheduler:
    """Moves that are wanted, planned and running."""

    def __init__(self) -> None:
        self._wanted: dict[str, Move] = {}
        self._transfers: dict[str, CacheTransfer] = {}

    @property
    def transfers(self) -> Iterable[CacheTransfer]:
        """Return what is planned or runs."""
        return self._transfers.values()

    def want(self, trajectory: str, move: Move | None) -> None:
        """Replace what is wanted for a trajectory; None: nothing."""
        if move is None:
            self._wanted.pop(trajectory, None)
        else:
            self._wanted[trajectory] = move

    def start(
        self, at: float, confirm: Callable[[str], Move | None], seconds: Callable[[int], float]
    ) -> list[Move]:
        """Plan the moves that can start now (rule 1), and return them.

        ``confirm`` returns the move that is wanted for a trajectory now, ``seconds`` what a transfer of so many tokens takes.
        """
        self._expire(at)
        started: list[Move] = []
        busy = self._busy() if self._wanted else set()
        for key in sorted(self._wanted, key=lambda key: (-self._wanted[key].length, key)):
            wanted = self._wanted[key]
            if key in self._transfers or not busy.isdisjoint((wanted.source, wanted.target)):
                continue
            move = confirm(key)
            self.want(key, move)
            if move is None or not busy.isdisjoint((move.source, move.target)):
                continue
            del self._wanted[key]
            self._transfers[key] = CacheTransfer(move, at, seconds(move.context_tokens))
            busy.update((move.source, move.target))
            started.append(move)
        return started

    def _busy(self) -> set[int]:
        ends = ((each.move.source, each.move.target) for each in self._transfers.values())
        return {number for both in ends for number in both}

    def _expire(self, at: float) -> None:
        """Give back the workers of moves whose begin or end is not reported (rules 2 and 4)."""
        for key in [key for key, each in self._transfers.items() if each.expires_at <= at]:
            del self._transfers[key]

    def began(self, trajectory: str, at: float) -> bool:
        """Note that a transfer begins. False: the move was dropped, and its transfer must not start."""
        transfer = self._transfers.get(trajectory)
        if transfer is None or transfer.void:
            return False
        if transfer.began_at is None:
            transfer.began_at = at
        return True

    def ended(self, trajectory: str) -> CacheTransfer | None:
        """Remove and return a transfer that ended, whether it began or not; None: it is not known."""
        return self._transfers.pop(trajectory, None)

    def of(self, trajectory: str) -> CacheTransfer | None:
        """Return the transfer of a trajectory that is not void."""
        transfer = self._transfers.get(trajectory)
        return None if transfer is None or transfer.void else transfer

    def tool_returned(self, trajectory: str, at: float, prefill_seconds: float) -> float | None:
        """Return until when the request waits for a running transfer; None: not at all (rules 2 and 3).

        A transfer that is not waited for is void afterwards: `of` says before where it was going.
        """
        self._wanted.pop(trajectory, None)
        transfer = self.of(trajectory)
        if transfer is None:
            return None
        if transfer.began_at is None:
            del self._transfers[trajectory]
            return None
        rest = max(0.0, transfer.began_at + transfer.seconds - at)
        if rest <= prefill_seconds:
            return at + prefill_seconds
        transfer.void = True
        return None

    def give_up(self, trajectory: str) -> None:
        """Make the transfer of a trajectory void, and drop what is not begun (rule 4)."""
        self._wanted.pop(trajectory, None)
        transfer = self._transfers.get(trajectory)
        if transfer is not None and transfer.began_at is None:
            del self._transfers[trajectory]
        elif transfer is not None:
            transfer.void = True

    def give_up_workers(self, void: Container[int], closed: Container[int]) -> list[str]:
        """Give up all moves from or to ``void`` workers and to ``closed`` ones; return the trajectories of those that had begun."""

        def gone(move: Move) -> bool:
            return move.source in void or move.target in void or move.target in closed

        for key in [key for key, move in self._wanted.items() if gone(move)]:
            del self._wanted[key]
        touched = [key for key, each in self._transfers.items() if gone(each.move)]
        begun = [key for key in touched if (found := self.of(key)) and found.began_at is not None]
        for key in touched:
            self.give_up(key)
        return begun

    def remember(self) -> TransmissionMemory:
        """Return all moves, by trajectory."""
        return TransmissionMemory(
            [self._wanted[key] for key in sorted(self._wanted)],
            [self._transfers[key] for key in sorted(self._transfers)],
        )

    def recall(self, memory: TransmissionMemory) -> None:
        """Replace what is stored by what `remember` returned."""
        self._wanted = {move.trajectory: move for move in memory.wanted}
        self._transfers = {each.move.trajectory: each for each in memory.transfers}
