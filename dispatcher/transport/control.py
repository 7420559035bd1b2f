"""Control plane of a group: heartbeats, the set of lost ranks, rounds of votes, and the error that ends the group, in a thread of its own.

The living rank with the lowest number coordinates: each other one holds a line to it. Heartbeats go both ways, also while a rank
computes. When the coordinator is lost, the next one takes its place, and the others connect to it.

Rules
1. A rank is lost when its line ends, when it is silent for ``silence_seconds``, or when another rank cannot exchange bytes with it. The
   coordinator decides, and says so to each rank.
2. A round ends when each living rank has voted. Its verdict carries the lost ranks, so that all have the same set then. A verdict that
   reached one rank before its coordinator was lost reaches the others by the next coordinator.
3. Until the first round has ended, a lost rank ends the group.
4. A rank that the group lost, and that comes back (SIGCONT), gets `RankLost` with its own number.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.transport.errors import Closed, DispatchError, JoinRefused, RankLost, TimedOut
from dispatcher.transport.lines import Line

Message = dict[str, Any]
#: Decides a round by the votes of all living ranks; raises the error of all of them.
Judge = Callable[[dict[int, Message]], Message]
#: Connects to a rank until a monotonic time.
Connect = Callable[[int, float], socket.socket]
#: Heartbeats in the time after which a rank is silent.
_BEATS = 6
#: How long a group that closes waits until the other ranks have read what ended it.
DRAIN_SECONDS = 2.0


class GroupState:
    """What a rank knows of its group. Written by the control thread, under ``changed``; read by each thread."""

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self.rank, self.ranks = rank, tuple(sorted(ranks))
        self.changed = threading.Condition()
        #: Rank → why it is lost.
        self.lost: dict[int, str] = {}
        self.error: DispatchError | None = None
        #: The latest verdict: {"round", "verdict", "lost"}.
        self.verdict: Message = {"round": 0}

    def is_alive(self, rank: int) -> bool:
        """Say whether a rank is a member that is not lost."""
        return rank in self.ranks and rank not in self.lost

    def set_error(self, error: DispatchError) -> None:
        """End the group; the first error stays."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def add_lost(self, rank: int, reason: str) -> None:
        """Add a lost rank."""
        with self.changed:
            self.lost = {**self.lost, rank: reason}
            self.changed.notify_all()

    def set_verdict(self, verdict: Message) -> None:
        """Keep a verdict that is newer than the one at hand."""
        with self.changed:
            if verdict["round"] > self.verdict["round"]:
                self.verdict = verdict
            self.changed.notify_all()


class ControlThread:
    """The thread of a rank that holds its lines. Other threads reach it by `order`."""

    def __init__(
        self,
        state: GroupState,
        connect: Connect,
        judge: Judge,
        silence_seconds: float,
        connect_seconds: float,
    ) -> None:
        self._state, self._connect, self._judge = state, connect, judge
        self._silence_seconds, self._connect_seconds = silence_seconds, connect_seconds
        self._lines: dict[int, Line] = {}
        self._votes: dict[int, tuple[int, Message]] = {}
        self._failure: Message | None = None
        #: Ranks to which this coordinator sent why the group ended.
        self._served: set[int] = set()
        #: Rank → the exchange of which it has sent all that it was to send.
        self._sent: dict[int, int] = {}
        self._joins_until = time.monotonic() + connect_seconds
        self._beats_at = 0.0
        self._closing_until: float | None = None
        self._orders: deque[Callable[[], None]] = deque()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="dispatcher-control", daemon=True)

    def start(self) -> None:
        """Begin; the coordinator awaits lines, another rank connects to it."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def order(self, call: Callable[[], None]) -> None:
        """Have the thread call something. Of any thread."""
        self._orders.append(call)
        try:
            self._wake.send(b"!")
        except OSError:  # full, so that it wakes anyway; or closed
            pass

    def has_line(self, rank: int) -> bool:
        """Say whether a rank has a line to this one. Of any thread."""
        return rank in self._lines

    # What follows is called in the thread: by itself, or by `order`.

    def add_line(self, line: Line) -> None:
        """Take the line of a rank that connected to this one, or to which this one connected.

        A rank that comes after the group has ended, because it lost the coordinator, gets the error of the group.
        """
        if not self._state.is_alive(line.rank):
            line.close()
            return
        if line.rank in self._lines:
            self._remove_line(self._lines[line.rank])
        self._lines[line.rank] = line
        self._selector.register(line.connection, selectors.EVENT_READ, line)
        if self._state.error is not None:
            line.send({"op": "fail", "error": self._state.error.description()})
            self._served.add(line.rank)

    def tell(self, message: Message) -> None:
        """Handle a message as the coordinator, or send it to the one there is."""
        if message["op"] == "vote":
            self._votes[self._state.rank] = (message["round"], message["vote"])
        if message["op"] == "fail":
            self._failure = message
        coordinator = self._coordinator
        if coordinator == self._state.rank:
            self._handle(self._state.rank, message)
        elif coordinator in self._lines:
            self._lines[coordinator].send(message)

    def leave(self) -> None:
        """End the group for all ranks, and this thread."""
        if self._closing_until is None:
            if self._state.error is None:
                self.tell({"op": "bye"})
            self._state.set_error(Closed(self._state.rank))
            self._closing_until = time.monotonic() + DRAIN_SECONDS

    @property
    def _coordinator(self) -> int:
        state = self._state
        return next((rank for rank in state.ranks if rank not in state.lost), state.rank)

    def _run(self) -> None:
        try:
            if self._coordinator != self._state.rank:
                self._join_coordinator(self._connect_seconds)
            while not self._ended():
                self._turn()
        except BaseException as error:  # a defect must not leave the other threads waiting
            self._state.set_error(DispatchError(f"the control thread ended: {error!r}"))
            raise
        finally:
            self._state.set_error(Closed(self._state.rank))
            for line in self._lines.values():
                line.close()
            for each in (self._selector, self._woken, self._wake):
                each.close()

    def _ended(self) -> bool:
        if self._closing_until is None:
            return False
        for line in self._lines.values():
            if not line.has_waiting:
                line.finish()
        if time.monotonic() >= self._closing_until:
            return True
        return not self._lines and not self._awaited()

    def _awaited(self) -> set[int]:
        """Return living ranks to which this coordinator has not sent why the group ended."""
        state = self._state
        if self._coordinator != state.rank:
            return set()
        return {each for each in state.ranks if state.is_alive(each)} - self._served - {state.rank}

    def _turn(self) -> None:
        for line in self._lines.values():
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_waiting else 0)
            self._selector.modify(line.connection, events, line)
        for key, events in self._selector.select(self._silence_seconds / _BEATS / 2):
            line = key.data
            if line is None:
                self._woken.recv(4096)
                continue
            if events & selectors.EVENT_WRITE:
                line.flush()
            if events & selectors.EVENT_READ and self._lines.get(line.rank) is line:
                self._read(line)
        while self._orders:
            self._orders.popleft()()
        if self._state.error is None:
            self._beat(time.monotonic())

    def _read(self, line: Line) -> None:
        try:
            for message in line.receive():
                self._handle(line.rank, message)
        except OSError as error:
            self._drop(line, str(error) or type(error).__name__)
        except (ValueError, KeyError, TypeError) as error:
            self._drop(line, f"it sent no message of this protocol: {error}")

    def _drop(self, line: Line, reason: str) -> None:
        """Close a line that ended; its rank is lost, if this is the line that says so."""
        mine = self._coordinator == self._state.rank or line.rank == self._coordinator
        self._remove_line(line)
        if self._state.error is None and mine:
            self._lose(line.rank, reason)

    def _remove_line(self, line: Line) -> None:
        if self._lines.get(line.rank) is line:
            del self._lines[line.rank]
            self._selector.unregister(line.connection)
        line.close()

    def _beat(self, now: float) -> None:
        if now >= self._beats_at:
            self._beats_at = now + self._silence_seconds / _BEATS
            for line in self._lines.values():
                line.send({"op": "alive"})
        for line in list(self._lines.values()):
            if now - line.heard_at > self._silence_seconds:
                self._drop(line, f"silent for {self._silence_seconds:g} s")
        if self._coordinator == self._state.rank:
            self._count_joins(now)
        else:
            self._refuse_strays(now)

    def _count_joins(self, now: float) -> None:
        """Lose ranks that did not connect to this coordinator in time."""
        state = self._state
        if now >= self._joins_until:
            for rank in state.ranks:
                if rank != state.rank and state.is_alive(rank) and rank not in self._lines:
                    self._lose(rank, "it did not connect in time")

    def _refuse_strays(self, now: float) -> None:
        """Answer a rank that lost a coordinator which the others still have: the group goes on without it."""
        for line in list(self._lines.values()):
            waited = now - line.opened_at > self._silence_seconds
            if line.rank != self._coordinator and waited:
                reason = f"it has no line to rank {self._coordinator}, which other ranks have"
                line.send({"op": "lost", "rank": line.rank, "reason": reason})
                self._remove_line(line)

    def _join_coordinator(self, seconds: float) -> None:
        """Connect to the coordinator there is now, and repeat to it what the one before may not have heard."""
        state, rank = self._state, self._coordinator
        try:
            line = Line(rank, self._connect(rank, time.monotonic() + seconds))
        except JoinRefused as error:
            state.set_error(error)
            return
        except OSError as error:
            self._lose(rank, f"it cannot be reached: {error}")
            return
        self.add_line(line)
        lost = {str(each): why for each, why in state.lost.items()}
        line.send({"op": "join", "lost": lost, "verdict": state.verdict})
        vote = self._votes.get(state.rank)
        if vote is not None:
            line.send({"op": "vote", "round": vote[0], "vote": vote[1]})
        if self._failure is not None:
            line.send(self._failure)

    def _handle(self, sender: int, message: Message) -> None:
        if message["op"] != "alive" and self._state.error is None:
            _OPERATIONS[message["op"]](self, sender, message)

    def _on_vote(self, sender: int, message: Message) -> None:
        verdict = self._state.verdict
        if message["round"] <= verdict["round"]:
            if sender in self._lines:
                self._lines[sender].send({"op": "verdict", **verdict})
            return
        self._votes[sender] = (message["round"], message["vote"])
        self._try_judge()

    def _on_suspect(self, sender: int, message: Message) -> None:
        self._lose(message["rank"], f"rank {sender} says: {message['reason']}")

    def _on_sent(self, sender: int, message: Message) -> None:
        self._sent[sender] = message["exchange"]

    def _on_stalled(self, sender: int, message: Message) -> None:
        """Lose a rank that has sent everything, of which nothing arrives; others may not have had their turn."""
        if self._sent.get(message["rank"], 0) >= message["exchange"]:
            self._on_suspect(sender, message)

    def _on_fail(self, sender: int, message: Message) -> None:
        if self._coordinator == self._state.rank:
            self._send_all(message)
            self._served |= {*self._lines}
        self._state.set_error(DispatchError.from_description(message["error"]))

    def _on_late(self, sender: int, message: Message) -> None:
        state = self._state
        if message["round"] == state.verdict["round"] + 1:
            voted = {
                rank for rank, (number, _) in self._votes.items() if number == message["round"]
            }
            late = [each for each in state.ranks if state.is_alive(each) and each not in voted]
            self._fail(TimedOut(late, message["seconds"]))

    def _on_bye(self, sender: int, message: Message) -> None:
        self._fail(RankLost(sender, "it closed the group"))

    def _on_join(self, sender: int, message: Message) -> None:
        self._state.set_verdict(message["verdict"])
        if self._coordinator == self._state.rank:
            for rank, reason in message["lost"].items():
                self._lose(int(rank), reason)

    def _on_lost(self, sender: int, message: Message) -> None:
        self._lose(message["rank"], message["reason"])

    def _on_verdict(self, sender: int, message: Message) -> None:
        for rank, reason in message["lost"].items():
            self._lose(int(rank), reason)
        self._state.set_verdict({key: message[key] for key in ("round", "verdict", "lost")})

    def _fail(self, error: DispatchError) -> None:
        self.tell({"op": "fail", "error": error.description()})

    def _send_all(self, message: Message) -> None:
        for line in self._lines.values():
            line.send(message)

    def _lose(self, rank: int, reason: str) -> None:
        state, before = self._state, self._coordinator
        if not state.is_alive(rank) or state.error is not None:
            return
        if before == state.rank:
            self._send_all({"op": "lost", "rank": rank, "reason": reason})
        if rank == state.rank:
            state.set_error(RankLost(rank, f"the group goes on without it: {reason}"))
            return
        state.add_lost(rank, reason)
        if rank in self._lines:
            self._remove_line(self._lines[rank])
        if state.verdict["round"] == 0:
            self._fail(RankLost(rank, reason))
            state.set_error(RankLost(rank, reason))
        elif before == state.rank:
            self._try_judge()
        elif rank == before and self._coordinator == state.rank:
            self._joins_until = time.monotonic() + self._silence_seconds
            self._try_judge()
        elif rank == before:
            self._join_coordinator(self._silence_seconds)

    def _try_judge(self) -> None:
        """End the round in which each living rank has voted."""
        state = self._state
        if self._coordinator != state.rank or state.error is not None:
            return
        number = state.verdict["round"] + 1
        alive = [rank for rank in state.ranks if state.is_alive(rank)]
        if any(self._votes.get(rank, (0,))[0] != number for rank in alive):
            return
        votes = {rank: self._votes[rank][1] for rank in alive}
        for vote in votes.values():
            for rank, reason in vote.get("broken", {}).items():
                if state.is_alive(int(rank)):
                    self._lose(int(rank), reason)  # ends the round, if the others allow it
                    return
        try:
            found = self._judge(votes)
        except DispatchError as error:
            self._fail(error)
            return
        lost = {str(rank): reason for rank, reason in state.lost.items()}
        verdict = {"round": number, "verdict": found, "lost": lost}
        self._send_all({"op": "verdict", **verdict})
        state.set_verdict(verdict)


_OPERATIONS: dict[str, Callable[[ControlThread, int, Message], None]] = {
    "vote": ControlThread._on_vote,
    "suspect": ControlThread._on_suspect,
    "sent": ControlThread._on_sent,
    "stalled": ControlThread._on_stalled,
    "fail": ControlThread._on_fail,
    "late": ControlThread._on_late,
    "bye": ControlThread._on_bye,
    "join": ControlThread._on_join,
    "lost": ControlThread._on_lost,
    "verdict": ControlThread._on_verdict,
}
