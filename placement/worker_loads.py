"""Loads of a fleet's workers: generations, and the caches of trajectories, counted at each change.

A worker that left the fleet keeps its counts until they are zero: generations that ran there end later, and its number may return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placement.facts import WorkerFacts, WorkerLoad


class WorkerLoads:
    """Counts by worker."""

    def __init__(self) -> None:
        #: By number: generations, trajectories, context tokens; without those that are all zero.
        self._counts: dict[int, tuple[int, int, int]] = {}
        self._views: list[WorkerLoad] = []
        #: By number, the place in `views`.
        self._places: dict[int, int] = {}

    @property
    def views(self) -> Sequence[WorkerLoad]:
        """All workers by number."""
        return self._views

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """Facts of all workers by number."""
        return tuple(view.facts for view in self._views)

    def set_workers(self, workers: Iterable[WorkerFacts]) -> None:
        """Replace the workers. Of two with one number the last one counts."""
        known = {facts.number: facts for facts in workers}
        self._views = [self._view(known[number]) for number in sorted(known)]
        self._places = {view.facts.number: place for place, view in enumerate(self._views)}

    def of(self, number: int | None) -> WorkerLoad | None:
        """Return one worker; None: there is none."""
        place = None if number is None else self._places.get(number)
        return None if place is None else self._views[place]

    def usable(self, number: int | None) -> bool:
        """Say whether a worker exists and takes generations."""
        view = self.of(number)
        return view is not None and view.facts.usable

    def add(
        self, number: int, *, generations: int = 0, trajectories: int = 0, context_tokens: int = 0
    ) -> None:
        """Change the counts of a worker."""
        before = self._counts.get(number, (0, 0, 0))
        after = (before[0] + generations, before[1] + trajectories, before[2] + context_tokens)
        if any(after):
            self._counts[number] = after
        else:
            self._counts.pop(number, None)
        place = self._places.get(number)
        if place is not None:
            self._views[place] = WorkerLoad(self._views[place].facts, *after)

    def _view(self, facts: WorkerFacts) -> WorkerLoad:
        return WorkerLoad(facts, *self._counts.get(facts.number, (0, 0, 0)))


def usable(loads: Iterable[WorkerLoad]) -> list[WorkerLoad]:
    """Return those that take generations."""
    return [load for load in loads if load.facts.usable]


def fill(load: WorkerLoad) -> float:
    """Return the generations of a worker by slot."""
    return load.generations / max(1, load.facts.slots)


def least_filled(loads: Sequence[WorkerLoad]) -> WorkerLoad | None:
    """Return the usable worker with fewest generations by slot, the first of equals."""
    return min(usable(loads), key=fill, default=None)
