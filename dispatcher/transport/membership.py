"""Membership of a group: which ranks are alive, what all of them agree on, and the error that ends the group, the same on each rank.

`ControlThread` holds the lines, in a thread; this is what the threads that exchange tensors call.
"""

from __future__ import annotations

import socket
import threading
import time

from dispatcher.transport.control import (
    DRAIN_SECONDS,
    Connect,
    ControlThread,
    GroupState,
    Judge,
    Message,
)
from dispatcher.transport.errors import DispatchError
from dispatcher.transport.lines import Line


class GroupMembership:
    """The living ranks of a group, as one of them sees it. Any thread may call it; one at a time may `agree`."""

    def __init__(
        self,
        rank: int,
        ranks: tuple[int, ...],
        connect: Connect,
        judge: Judge,
        silence_seconds: float,
        connect_seconds: float,
    ) -> None:
        self._state = GroupState(rank, ranks)
        self._control = ControlThread(self._state, connect, judge, silence_seconds, connect_seconds)
        self._silence_seconds, self._open_seconds = silence_seconds, connect_seconds
        self._round = 0

    @property
    def changed(self) -> threading.Condition:
        """Notified when a rank is lost, a round has ended, or the group has."""
        return self._state.changed

    @property
    def lost(self) -> dict[int, str]:
        """Lost ranks, and why."""
        return dict(self._state.lost)

    @property
    def error(self) -> DispatchError | None:
        """What ended the group."""
        return self._state.error

    def open(self) -> None:
        """Return when all ranks are connected; raises `RankLost` for one that is not in time."""
        self._control.start()
        self.agree({}, self._open_seconds + self._silence_seconds)

    def admit(self, rank: int) -> str:
        """Return why a rank may not connect to this one, or ""."""
        if rank not in self._state.ranks:
            return f"rank {rank} is not in the group"
        if rank in self._state.lost:
            return f"rank {rank} was lost"
        return ""

    def has_line(self, rank: int) -> bool:
        """Say whether a rank has a line to this one already."""
        return self._control.has_line(rank)

    def adopt(self, rank: int, connection: socket.socket) -> None:
        """Take the line of a rank that connected to this one."""
        self._control.order(lambda: self._control.add_line(Line(rank, connection)))

    def suspect(self, rank: int, reason: str) -> None:
        """Say that bytes cannot be exchanged with a rank."""
        message = {"op": "suspect", "rank": rank, "reason": reason}
        self._control.order(lambda: self._control.tell(message))

    def sent(self, exchange: int) -> None:
        """Say that this rank has sent all that it was to send in an exchange."""
        message = {"op": "sent", "exchange": exchange}
        self._control.order(lambda: self._control.tell(message))

    def stalled(self, rank: int, exchange: int, seconds: float) -> None:
        """Say that no byte came from a rank for so long; it is lost if it has sent all of them."""
        reason = f"nothing that it sent arrived for {seconds:g} s"
        message = {"op": "stalled", "rank": rank, "exchange": exchange, "reason": reason}
        self._control.order(lambda: self._control.tell(message))

    def fail(self, error: DispatchError) -> None:
        """End the group by this error on each rank, if none ended it before."""
        message = {"op": "fail", "error": error.description()}
        self._control.order(lambda: self._control.tell(message))

    def agree(self, vote: Message, timeout_seconds: float) -> tuple[Message, dict[int, str]]:
        """Vote in the next round and await its verdict; returns it with the ranks that were lost when it was given.

        Raises the error that ended the group: `TimedOut` on each rank, with the ranks that did not vote in time.
        """
        state, control = self._state, self._control
        self._round += 1
        number, until = self._round, time.monotonic() + timeout_seconds
        late = {"op": "late", "round": number, "seconds": timeout_seconds}
        ballot = {"op": "vote", "round": number, "vote": vote}
        control.order(lambda: control.tell(ballot))
        with state.changed:
            while state.verdict["round"] < number:
                if state.error is not None:
                    raise state.error
                left = until - time.monotonic()
                if left <= 0:
                    control.order(lambda: control.tell(late))
                state.changed.wait(left if left > 0 else self._silence_seconds)
            lost = {int(rank): reason for rank, reason in state.verdict["lost"].items()}
            verdict: Message = state.verdict["verdict"]
            return verdict, lost

    def close(self) -> None:
        """Leave, which ends the group for all ranks; returns when they have been sent what they are due. Idempotent."""
        self._control.order(self._control.leave)
        self._control.join(DRAIN_SECONDS + 1.0)
