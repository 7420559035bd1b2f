"""Folding: the way of one fold there and back, as a state machine over what its workers report.

    draining → sleeping → waking → folded → clearing → returning → returned
        └──────────┴─────────┴──────────────────┴───────────────────────↗     whatever fails returns

Rules
1. All narrow workers end their generations, then all sleep, then the wide one wakes; on the way back the wide one gives its memory back before
   a narrow one wakes: two engines never have one GPU.
2. Whatever fails, the narrow ones return: those that sleep wake. What fails before any of them sleeps changes nothing. A narrow worker that
   fails its order or dies is lost; the others serve.
3. A wide worker that did not wake, or died, may still have memory: it is stopped, and what reports that its memory is free ends the wait.
4. `Folding.failed` says why a fold returned; its caller folds that site no more in this batch. Reports that do not fit the stage change nothing, so
   that they may be repeated.

A report returns the next `Folding` and the orders for workers. Equal folds have equal bytes: all sets are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec.structs import replace

from placement.fold import Fold

Numbers = tuple[int, ...]


class FoldStage(StrEnum):
    """Where a fold is."""

    #: The narrow workers end their generations.
    DRAINING = "draining"
    SLEEPING = "sleeping"
    #: The wide worker wakes.
    WAKING = "waking"
    FOLDED = "folded"
    #: The wide worker gives its memory back, the narrow ones end orders to sleep.
    CLEARING = "clearing"
    #: The narrow workers wake.
    RETURNING = "returning"
    RETURNED = "returned"


class WorkerOrder(msgspec.Struct, frozen=True, gc=False):
    """An order for a worker; ``stop`` ends its engine, whatever state it is in."""

    order: Literal["sleep", "wake", "stop"]
    worker: int


Step = tuple["Folding", list[WorkerOrder]]


class Folding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fold under way; each method takes a report of a worker."""

    fold: Fold
    stage: FoldStage = FoldStage.DRAINING
    #: Narrow workers without a generation.
    idle: Numbers = ()
    #: Workers whose order has no report yet.
    pending: Numbers = ()
    #: Narrow workers that sleep.
    asleep: Numbers = ()
    #: Narrow workers that failed an order, or died.
    lost: Numbers = ()
    #: Why it returned; empty: it was ended on purpose, or goes on.
    failed: str = ""

    @property
    def serving(self) -> Numbers:
        """Return the workers of the fold that may get generations."""
        if self.stage is FoldStage.FOLDED:
            return (self.fold.wide,)
        if self.stage in {FoldStage.RETURNING, FoldStage.RETURNED}:
            return _without(self.fold.sleeping, *self.asleep, *self.lost)
        return ()

    def became_idle(self, worker: int) -> Step:
        """Take the report that a narrow worker has no generation."""
        if self.stage is not FoldStage.DRAINING or worker not in self.fold.sleeping:
            return self, []
        idle = _with(self.idle, worker)
        if idle != self.fold.sleeping:
            return replace(self, idle=idle), []
        sleeping = replace(self, idle=idle, stage=FoldStage.SLEEPING, pending=idle)
        return sleeping, _orders("sleep", idle)

    def slept(self, worker: int) -> Step:
        """Take the report that a worker sleeps or has stopped: its memory is measured free."""
        if worker not in self.pending or self.stage not in {FoldStage.SLEEPING, FoldStage.CLEARING}:
            return self, []
        asleep = self.asleep if worker == self.fold.wide else _with(self.asleep, worker)
        return replace(self, pending=_without(self.pending, worker), asleep=asleep)._onward()

    def woke(self, worker: int) -> Step:
        """Take the report that a worker serves."""
        if worker not in self.pending:
            return self, []
        if self.stage is FoldStage.WAKING:
            return replace(self, stage=FoldStage.FOLDED, pending=()), []
        if self.stage is not FoldStage.RETURNING:
            return self, []
        return replace(
            self, pending=_without(self.pending, worker), asleep=_without(self.asleep, worker)
        )._onward()

    def failed_at(self, worker: int, why: str) -> Step:
        """Take the report that a worker failed its order, or died."""
        if worker == self.fold.wide:
            return self._wide_failed(why)
        if worker not in self.fold.sleeping or self.stage is FoldStage.RETURNED:
            return self, []
        after = replace(
            self,
            lost=_with(self.lost, worker),
            pending=_without(self.pending, worker),
            asleep=_without(self.asleep, worker),
        )
        if self.stage is FoldStage.DRAINING:
            return replace(after, stage=FoldStage.RETURNED, failed=why), []
        if self.stage is FoldStage.SLEEPING:
            after = replace(after, stage=FoldStage.CLEARING, failed=why)
        return after._onward()

    def _wide_failed(self, why: str) -> Step:
        stage = self.stage
        if stage is FoldStage.DRAINING:
            return replace(self, stage=FoldStage.RETURNED, failed=why), []
        if stage is FoldStage.SLEEPING:
            return replace(self, stage=FoldStage.CLEARING, failed=why)._onward()
        if stage in {FoldStage.WAKING, FoldStage.FOLDED}:
            return self._clear("stop", why)
        if stage is FoldStage.CLEARING and self.fold.wide in self.pending:
            return self, _orders("stop", (self.fold.wide,))
        return self, []

    def end(self) -> Step:
        """Take the fold back on purpose, for instance because a batch has begun; the wide worker has no generation."""
        if self.stage is FoldStage.DRAINING:
            return replace(self, stage=FoldStage.RETURNED), []
        if self.stage is FoldStage.SLEEPING:
            return replace(self, stage=FoldStage.CLEARING)._onward()
        if self.stage is FoldStage.WAKING:
            return self._clear("stop")
        if self.stage is FoldStage.FOLDED:
            return self._clear("sleep")
        return self, []

    def _clear(self, order: Literal["sleep", "stop"], why: str = "") -> Step:
        pending = (self.fold.wide,)
        after = replace(self, stage=FoldStage.CLEARING, pending=pending, failed=why or self.failed)
        return after, _orders(order, pending)

    def _onward(self) -> Step:
        """Begin the next stage when no report is awaited."""
        if self.pending:
            return self, []
        if self.stage is FoldStage.SLEEPING:
            wide = (self.fold.wide,)
            return replace(self, stage=FoldStage.WAKING, pending=wide), _orders("wake", wide)
        if self.stage is FoldStage.CLEARING and self.asleep:
            after = replace(self, stage=FoldStage.RETURNING, pending=self.asleep)
            return after, _orders("wake", self.asleep)
        if self.stage in {FoldStage.CLEARING, FoldStage.RETURNING}:
            return replace(self, stage=FoldStage.RETURNED), []
        return self, []


def _orders(order: Literal["sleep", "wake", "stop"], workers: Iterable[int]) -> list[WorkerOrder]:
    return [WorkerOrder(order, worker) for worker in workers]


def _with(numbers: Numbers, number: int) -> Numbers:
    return tuple(sorted({*numbers, number}))


def _without(numbers: Numbers, *removed: int) -> Numbers:
    return tuple(number for number in numbers if number not in removed)
