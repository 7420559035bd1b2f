"""TCP transport: a group of ranks with addresses that exchange tensors directly.

Each rank holds one connection for control (`ControlThread`) and opens one to each rank that it sends to, when it first does. An exchange is
two rounds of votes around the movement of bytes: all agree on what is exchanged, and all agree that it is complete.

Rules
1. A rank that is dead (kill -9), silent (SIGSTOP) or cut off is found within ``silence_seconds`` by the group, and named on each rank. Bytes
   that no acknowledgement follows end their connection after 1.5 times as long.
2. Where each part that a lost rank was to send has a replica, the rest is planned again and the exchange completes; `ExchangeReport.lost`
   names the rank. A lost target rank, or a part without a replica, is `RankLost` on each rank.
3. The first error closes the group. A new one needs new listeners.

Lifetimes. A group is opened once, used for any number of exchanges by one thread at a time, and closed by its owner. The listener is the
group's from the constructor on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from dispatcher.cost import ALL_TO_ALL, GATHER_SCATTER, NOTHING, PAIRS, Links, choose
from dispatcher.errors import PlanError
from dispatcher.plan import plan_transfer
from dispatcher.transfer_plan import TransferPlan
from dispatcher.transport import agreement
from dispatcher.transport.connections import (
    CONTROL,
    DATA,
    Acceptor,
    Address,
    connect,
    listen,
)
from dispatcher.transport.data_links import DataLinks
from dispatcher.transport.errors import RankLost, as_dispatch_error
from dispatcher.transport.membership import GroupMembership
from dispatcher.transport.movement import Movement
from dispatcher.transport.report import ExchangeReport
from dispatcher.transport.steps import (
    STRATEGIES,
    ExchangeStep,
    copy_in_place,
    rest,
    steps,
)
from dispatcher.transport.streams import size

__all__ = ["TcpTransport", "listen"]

#: Waits for a round that ends when all bytes have moved; the time is bounded by the loss of a rank.
_UNBOUNDED = 1e9


class TcpTransport:
    """One rank's end of a group. A context manager: leaving it closes the group."""

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, Address],
        *,
        listener: Any,
        secret: bytes,
        checksums: bool = True,
        silence_seconds: float = 3.0,
        connect_seconds: float = 30.0,
        links: Links | None = None,
    ) -> None:
        """Return when all ranks are connected.

        ``addresses`` has each rank of the group, this one too; ``listener`` is the socket at this rank's address. With ``links``, the strategy is
        the one of the least predicted seconds, else each rank sends to each other one. Raises `RankLost` for a rank that is not there within ``connect_seconds``, `JoinRefused`.
        """
        if rank not in addresses:
            raise ValueError(f"rank {rank} has no address; give one for each rank of the group")
        if not secret:
            raise ValueError("secret is empty; give the ranks of one group the same random bytes")
        self.rank, self.ranks = rank, tuple(sorted(addresses))
        self.report = ExchangeReport(NOTHING)
        self._addresses, self._secret, self._checked = dict(addresses), secret, checksums
        self._silence_seconds, self._costs = silence_seconds, links
        self._number, self._using = 0, threading.Lock()
        self._broken: dict[str, str] = {}
        self._links = DataLinks(
            lambda to, until, is_wanted: self._connect(
                to, DATA, until, 1.5 * silence_seconds, is_wanted
            ),
            silence_seconds,
        )
        self._membership = GroupMembership(
            rank,
            self.ranks,
            lambda to, until: self._connect(to, CONTROL, until, silence_seconds),
            agreement.judge,
            silence_seconds,
            connect_seconds,
        )
        self._acceptor = Acceptor(
            listener, secret, rank, 1.5 * silence_seconds, self._admit, self._take
        )
        try:
            self._membership.open()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> dict[int, str]:
        """Ranks that the group lost, and why."""
        return self._membership.lost

    def exchange(
        self,
        plan: TransferPlan,
        tensors: Mapping[str, Any],
        *,
        strategy: str | None = None,
        timeout_seconds: float = 600.0,
    ) -> dict[str, Any]:
        """Return this rank's arrays of the target layout, {} where it has none; complete and checked on each rank.

        ``tensors`` are its arrays of the source layout. All ranks have to call within ``timeout_seconds``. Raises a `DispatchError`, the same on each
        rank, and closes the group.
        """
        if strategy not in (None, *STRATEGIES):
            raise ValueError(f"strategy {strategy!r}; give one of {', '.join(STRATEGIES)}")
        with self._using:
            try:
                return self._exchange(plan, tensors, strategy, timeout_seconds)
            except BaseException as error:
                self._membership.fail(as_dispatch_error(error, self.rank))
                self.close()
                raise

    def close(self) -> None:
        """Leave the group, which ends it for all ranks. Idempotent."""
        self._membership.close()
        self._links.close()
        self._acceptor.close()

    def __enter__(self) -> TcpTransport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange(
        self,
        plan: TransferPlan,
        tensors: Mapping[str, Any],
        strategy: str | None,
        timeout_seconds: float,
    ) -> dict[str, Any]:
        began = time.perf_counter()
        unknown = sorted(set(plan.ranks) - set(self.ranks))
        if unknown:
            raise ValueError(f"ranks {unknown} of the plan have no address in this group")
        strategy = strategy or _strategy(plan, self._costs)
        report = self.report = ExchangeReport(strategy)
        options = f"{strategy}, checksums {'on' if self._checked else 'off'}"
        about = agreement.describe(plan, self.rank, tensors, options)
        _, lost = self._membership.agree({"about": about}, timeout_seconds)
        work, self._broken = plan, {}
        self._number += 1
        if lost:
            work = self._without(plan, lost)
            strategy = ALL_TO_ALL
        want = plan.target.empty(self.rank) if self.rank in plan.target.mesh.ranks else {}
        if self.rank in work.ranks:
            taken = steps(work, strategy, self.rank, tensors, want)
            self._start(taken[0], len(taken) == 1)
            copy_in_place(work, self.rank, tensors, want)
            self._finish(work)
            for step in taken[1:]:
                self._start(step, step is taken[-1])
                self._finish(work)
        lost = self._complete(work, strategy, lost, tensors, want)
        report.lost, report.seconds = lost, time.perf_counter() - began
        return want

    def _complete(
        self,
        plan: TransferPlan,
        strategy: str,
        lost: dict[int, str],
        have: Mapping[str, Any],
        want: dict[str, Any],
    ) -> dict[int, str]:
        """Have all ranks agree that they are complete; until then, bring what lost ranks did not. Returns the lost ranks."""
        gone: frozenset[int] = frozenset()
        while True:
            before = lost
            _, lost = self._membership.agree({"broken": self._broken}, _UNBOUNDED)
            new = (set(lost) - set(before)) & set(plan.ranks)
            if not new:
                return lost
            gone |= new
            after = self._without(plan, lost)
            self.report.replanned += 1
            self._number += 1
            if self.rank in after.ranks:
                whole = None if strategy == GATHER_SCATTER else gone
                self._start(rest(plan, after, whole, self.rank, have, want))
                self._finish(after)

    def _start(self, step: ExchangeStep, is_last: bool = True) -> None:
        """Begin to move the bytes of a step.

        Streams are read from here on, also while this rank copies: to a sender, it would look like one that hangs.
        """
        self._movement = Movement(
            self.rank, self._number, step, self._links, self._membership, self._checked, is_last
        )
        self._movement.start()
        self.report.add(
            {to: size(pieces) for to, pieces in step.sends.items()},
            {sender: size(pieces) for sender, pieces in step.receives.items()},
        )

    def _finish(self, plan: TransferPlan) -> None:
        """Return when all streams of the step have ended, also those with ranks that were lost meanwhile."""
        membership, movement = self._membership, self._movement
        known: set[int] = set()
        while movement.is_running and membership.error is None:
            movement.wait(len(known), self._silence_seconds / 4)
            if set(membership.lost) != known:
                known = set(membership.lost)
                for rank in known:
                    self._links.cut(rank)
                self._check(plan, membership.lost)
            movement.report_stalls(self._silence_seconds)
        if membership.error is not None:
            self._links.cut_all()
        movement.join()
        self._broken |= {str(rank): reason for rank, reason in movement.broken.items()}
        if membership.error is not None:
            raise membership.error

    def _check(self, plan: TransferPlan, lost: dict[int, str]) -> None:
        """End the group at once where a lost rank leaves the batch incomplete."""
        try:
            self._without(plan, lost)
        except RankLost as error:
            self._membership.fail(error)

    def _without(self, plan: TransferPlan, lost: dict[int, str]) -> TransferPlan:
        """Return the plan without lost ranks. Raises `RankLost` where one is a target, or has what exists on no other rank."""
        concerned = [rank for rank in sorted(lost) if rank in plan.ranks]
        if set(concerned) <= set(plan.lost):
            return plan
        try:
            return plan_transfer(plan.source, plan.target, plan.hosts, lost=concerned)
        except PlanError as error:
            rank = next((each for each in error.ranks if each in lost), concerned[0])
            raise RankLost(rank, f"{lost[rank]}; {error}") from None

    def _connect(
        self,
        to: int,
        purpose: int,
        until: float,
        silence_seconds: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Any:
        ranks = (self.rank, to)
        return connect(
            self._addresses[to], self._secret, ranks, purpose, until, silence_seconds, is_wanted
        )

    def _admit(self, rank: int, purpose: int) -> str:
        """Return why a rank may not connect, or ""."""
        if purpose == CONTROL and self._membership.has_line(rank):
            return f"rank {rank} is taken"
        return self._membership.admit(rank)

    def _take(self, rank: int, purpose: int, connection: Any) -> None:
        if purpose == CONTROL:
            self._membership.adopt(rank, connection)
        else:
            self._links.adopt(rank, connection)


def _strategy(plan: TransferPlan, links: Links | None) -> str:
    """Return the cheapest strategy by what links cost; without, what fits the pairs that exchange bytes: TCP has nothing to pack."""
    if links is not None:
        return choose(plan, links)
    pairs = plan.pair_bytes()
    senders, receivers = {sender for sender, _ in pairs}, {receiver for _, receiver in pairs}
    if not pairs:
        return NOTHING
    return PAIRS if len(pairs) == len(senders) == len(receivers) else ALL_TO_ALL
