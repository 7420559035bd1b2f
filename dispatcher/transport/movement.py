"""Movement of the bytes of one step: a few threads that send to one rank after the other, and one for each rank that is received from.

Rules
1. A stream whose connection fails makes its rank suspect; streams with other ranks go on.
2. A stream of which nothing arrives, though its sender has sent all, makes it suspect, too: something between them swallows bytes.
3. Bytes that fail their checksum end the group.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from dispatcher.transport.data_links import Cut, DataLinks
from dispatcher.transport.errors import DispatchError, JoinRefused
from dispatcher.transport.membership import GroupMembership
from dispatcher.transport.steps import ExchangeStep
from dispatcher.transport.streams import receive, rotation, send

#: Ranks that one rank sends to at a time.
SENDERS = 8


class Movement:
    """The threads of one step on one rank, from `start` until `is_running` is false."""

    def __init__(
        self,
        rank: int,
        number: int,
        step: ExchangeStep,
        links: DataLinks,
        membership: GroupMembership,
        checked: bool,
        is_last: bool,
    ) -> None:
        self._rank, self._number, self._step = rank, number, step
        self._links, self._membership = links, membership
        self._checked, self._is_last = checked, is_last
        self._receiving = set(step.receives)
        #: Rank → why bytes could not be exchanged with it.
        self.broken: dict[int, str] = {}
        calls: list[Callable[[], None]] = [partial(self._receive, each) for each in step.receives]
        self._to_send = deque(rotation(rank, list(step.sends)))
        self._senders = max(1, min(SENDERS, len(self._to_send)))
        calls += [self._send] * self._senders
        self._running = len(calls)
        self._threads = [threading.Thread(target=self._run, args=(c,), daemon=True) for c in calls]

    @property
    def is_running(self) -> bool:
        """Say whether a thread has not ended."""
        return self._running > 0

    def start(self) -> None:
        """Begin to send and to receive."""
        for thread in self._threads:
            thread.start()

    def wait(self, known_lost: int, seconds: float) -> None:
        """Wait until the threads have ended, the group has, or more ranks are lost than were known; at most so long."""
        membership = self._membership
        with membership.changed:
            membership.changed.wait_for(
                lambda: (
                    not self.is_running
                    or membership.error is not None
                    or len(membership.lost) != known_lost
                ),
                timeout=seconds,
            )

    def report_stalls(self, seconds: float) -> None:
        """Report ranks of which nothing has arrived for so long, though bytes are missing."""
        for sender in list(self._receiving):
            if self._links.idle_seconds(sender) > seconds:
                self._membership.stalled(sender, self._number, seconds)

    def join(self) -> None:
        """Wait for the threads; after `DataLinks.cut_all` they end at once."""
        for thread in self._threads:
            thread.join()

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except DispatchError as error:
            self._membership.fail(error)
        except Exception as error:  # a defect must not leave the group waiting
            self._membership.fail(DispatchError(f"rank {self._rank}: {error!r}", self._rank))
        finally:
            with self._membership.changed:
                self._running -= 1
                self._membership.changed.notify_all()

    def _send(self) -> None:
        while True:
            try:
                to = self._to_send.popleft()
            except IndexError:
                break
            self._with(to, partial(self._send_to, to))
        with self._membership.changed:
            self._senders -= 1
            is_last = self._senders == 0
        if self._is_last and is_last:
            self._membership.sent(self._number)

    def _send_to(self, to: int) -> None:
        send(self._links.outgoing(to), self._number, self._step.sends[to], self._checked)

    def _receive(self, sender: int) -> None:
        self._with(sender, partial(self._receive_from, sender))
        self._receiving.discard(sender)

    def _receive_from(self, sender: int) -> None:
        connection = self._links.incoming(sender)
        pieces = self._step.receives[sender]
        receive(connection, self._number, sender, pieces, self._checked)

    def _with(self, rank: int, call: Callable[[], None]) -> None:
        try:
            call()
        except Cut:
            pass
        except (OSError, JoinRefused) as error:
            self.broken[rank] = f"no bytes between it and rank {self._rank}: {error}"
            self._membership.suspect(rank, str(error) or type(error).__name__)
