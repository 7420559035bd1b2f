"""EngineModel: one worker of a language-model engine in virtual time, with continuous batching.

Theory of operation. All sequences of the batch get one token in each *iteration*, whose time is a constant of the batch size plus
a term for each token of cache that is read. Between two changes of the batch the time of k iterations is a polynomial of k; so
the model jumps from change to change, and its cost does not depend on the tokens.

Rules
1. A generation begins at the end of an iteration: a slot must be free, and the caches of the batch and its prompt must fit.
2. Uncached tokens of its prompt stall the batch while they are computed; so does a cache that comes back from the host.
3. When the batch outgrows the memory, the sequence that is served last is preempted: it waits again, with its place in the
   queue, and with its cache where the host has room.
4. With ``preempts`` one sequence of a full batch gives way to a waiting one of strictly smaller priority (Heddle, Algorithm 1).
5. No randomness, no clock: equal calls give equal events. Calls are in the order of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from managers.llm.fake.engine_spec import EngineSpec
from managers.llm.fake.generations import (
    EngineEvent,
    GenerationBegan,
    GenerationEnded,
    GenerationPreempted,
    ModelledGeneration,
)
from managers.llm.fake.prefix_cache import PrefixCache

#: Part of the memory that stays free when a sequence joins others, so that they can grow.
HEADROOM = 0.03
Order = tuple[float, int]


class PromptTooLong(ValueError):
    """A generation whose prompt and tokens never fit on the worker."""


@dataclass(slots=True)
class _Sequence:
    generation: ModelledGeneration
    order: Order
    #: Tokens of earlier turns in the batch.
    sampled: int = 0
    #: Iteration at which it has all its tokens, and that at which it joined.
    last: int = 0
    joined: int = 0


class EngineModel:
    """Queue, batch and caches of one worker."""

    def __init__(
        self, spec: EngineSpec, degree: int, slots: int, *, preempts: bool = False, at: float = 0.0
    ) -> None:
        self.spec = spec
        self.degree = degree
        self.slots = slots
        self.cache = PrefixCache(spec.host_tokens(degree))
        self.capacity = spec.kv_tokens(degree)
        #: Tokens of prompts that were computed; those of the same prompts that were cached.
        self.computed_tokens = 0
        self.cached_tokens = 0
        self._preempts = preempts
        self._per_context = spec.context_seconds(degree)
        self._base: list[float] = [0.0]
        self._clock = at
        self._iteration = 0
        self._entered = 0
        self._waiting: list[tuple[Order, str]] = []
        self._batch: dict[str, _Sequence] = {}
        self._ends: list[tuple[int, str]] = []
        self._known: dict[str, _Sequence] = {}
        #: Tokens of cache of the batch.
        self._context = 0
        #: The first of the queue did not fit, and nothing has left since.
        self._blocked = False
        self._arrived = at

    @property
    def running(self) -> int:
        """Number of sequences in the batch."""
        return len(self._batch)

    @property
    def generations(self) -> int:
        """Number of those that run or wait."""
        return len(self._known)

    @property
    def context_tokens(self) -> int:
        """Tokens of cache of the batch."""
        return self._context

    def sampled(self, key: str) -> int:
        """Return the tokens that a generation has so far; 0 for one that has ended."""
        found = self._known.get(key)
        if found is None:
            return 0
        return found.sampled + (self._iteration - found.joined if key in self._batch else 0)

    def submit(self, generation: ModelledGeneration, at: float) -> list[EngineEvent]:
        """Queue a generation; return what happened until then. Generations of one moment are ordered before any begins.

        Raises PromptTooLong, and ValueError for a key that is known.
        """
        if generation.key in self._known:
            raise ValueError(f"{generation.key} is here already")
        longest = generation.prompt_tokens + generation.tokens
        if longest > self.capacity:
            raise PromptTooLong(f"{longest} tokens, where {self.capacity:.0f} fit")
        events = self._advance(at, begins_at_end=False)
        self._entered += 1
        entry = _Sequence(generation, (generation.priority, self._entered))
        self._known[generation.key] = entry
        heappush(self._waiting, (entry.order, generation.key))
        self._arrived, self._blocked = at, False
        return events

    def advance(self, to: float) -> list[EngineEvent]:
        """Let the time pass until ``to``, and return what happened, in order."""
        return self._advance(to, begins_at_end=True)

    def _advance(self, to: float, *, begins_at_end: bool) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while self._clock <= to if begins_at_end else self._clock < to:
            self._admit(events, to)
            if not self._batch and self._waiting and self._arrived <= to:
                self._clock = self._arrived  # what ran was aborted within an iteration
                continue
            if not self._batch:
                self._clock = max(self._clock, to)
            if not self._batch or self._clock > to:
                break
            self._make_room(events)
            count = self._iterations_to_change()
            seconds = self._seconds(count)
            if self._clock + seconds > to:
                self._pass_until(to)
                break
            self._pass(count, seconds)
            self._end(events)
        return events

    def next_event(self) -> float:
        """Return the moment of the next change of the batch; inf when there is none to come."""
        if not self._known:
            return math.inf
        if not self._batch or self._admissible():
            return self._clock
        return self._clock + self._seconds(self._iterations_to_change())

    def abort(self, key: str, at: float) -> tuple[int, list[EngineEvent]]:
        """End a generation; return the tokens it had, and what happened until then."""
        events = self.advance(at)
        entry = self._known.get(key)
        if entry is None:
            return 0, events
        sampled = self._leave(entry)
        del self._known[key]
        self._waiting = [each for each in self._waiting if each[1] != key]
        self._waiting.sort()
        return sampled, events

    def export(self, sequence: str) -> int:
        """Return the tokens of a sequence's cache, which leaves; 0 where it has none."""
        tokens = self.cache.tokens(sequence)
        self.cache.forget(sequence)
        return tokens

    def receive(self, sequence: str, tokens: int) -> None:
        """Take a cache from another worker."""
        if tokens > 0:
            self.cache.put(sequence, tokens)
            self._fit()

    def _admissible(self) -> bool:
        """Return whether the first of the queue may begin at the end of the current iteration."""
        if self._blocked or not self._waiting or self._arrived > self._clock:
            return False
        return len(self._batch) < self.slots or self._gives_way() is not None

    def _admit(self, events: list[EngineEvent], to: float) -> None:
        while self._clock <= to and self._admissible():
            entry = self._known[self._waiting[0][1]]
            needed = entry.generation.prompt_tokens + entry.sampled
            room = self.capacity * (1 - HEADROOM) - self._context - len(self._batch)
            if self._batch and needed > room:
                self._blocked = True
                return
            if len(self._batch) >= self.slots and (victim := self._gives_way()) is not None:
                self._preempt(victim, events)
            heappop(self._waiting)
            self._begin(entry, needed, events)

    def _begin(self, entry: _Sequence, needed: int, events: list[EngineEvent]) -> None:
        generation = entry.generation
        matching = generation.matching_tokens
        most = needed - 1 if matching is None or entry.sampled else min(matching, needed - 1)
        hit = self.cache.take(generation.sequence, most)
        cached = hit.gpu_tokens + hit.host_tokens
        computed = needed - cached
        stall = self.spec.prefill_seconds(self.degree, computed)
        stall += self.spec.load_seconds(hit.host_tokens)
        events.append(GenerationBegan(generation.key, self._clock, cached, stall))
        self.cached_tokens += cached
        self.computed_tokens += computed
        self._clock += stall
        entry.joined = self._iteration
        entry.last = self._iteration + generation.tokens - entry.sampled
        self._batch[generation.key] = entry
        heappush(self._ends, (entry.last, generation.key))
        self._context += needed
        self._fit()

    def _gives_way(self) -> str | None:
        """Return the running sequence that a waiting one replaces, where a full batch preempts."""
        if not self._preempts:
            return None
        last = max(self._batch.values(), key=_order)
        return last.generation.key if self._waiting[0][0][0] < last.order[0] else None

    def _make_room(self, events: list[EngineEvent]) -> None:
        while len(self._batch) > 1 and self._context + len(self._batch) > self.capacity:
            self._preempt(max(self._batch.values(), key=_order).generation.key, events)

    def _preempt(self, key: str, events: list[EngineEvent]) -> None:
        entry = self._batch[key]
        sampled = self._leave(entry)
        events.append(GenerationPreempted(key, self._clock, sampled))
        heappush(self._waiting, (entry.order, key))

    def _leave(self, entry: _Sequence) -> int:
        """Take a sequence out of the batch, with its cache; return the tokens that it has."""
        key = entry.generation.key
        if key in self._batch:
            entry.sampled = self.sampled(key)
            del self._batch[key]
            context = entry.generation.prompt_tokens + entry.sampled
            self._context -= context
            self.cache.put(entry.generation.sequence, context)
            self._fit()
            self._blocked = False
        return entry.sampled

    def _fit(self) -> None:
        self.cache.fit(self.capacity - self._context)

    def _iterations_to_change(self) -> int:
        """Return the iterations until a sequence ends, the memory is full, or a newcomer may begin."""
        while not self._ends_then(*self._ends[0]):
            heappop(self._ends)  # of a sequence that was preempted
        until = self._ends[0][0] - self._iteration
        if self._waiting and self._arrived > self._clock and not self._blocked:
            return 1
        batch = len(self._batch)
        if batch > 1:
            until = min(until, max(1, int(self.capacity - self._context) // batch))
        return max(1, until)

    def _ends_then(self, iteration: int, key: str) -> bool:
        entry = self._batch.get(key)
        return entry is not None and entry.last == iteration

    def _base_seconds(self, batch: int) -> float:
        while len(self._base) <= batch:
            self._base.append(self.spec.base_seconds(self.degree, len(self._base)))
        return self._base[batch]

    def _seconds(self, count: int) -> float:
        batch = len(self._batch)
        read = count * self._context + batch * count * (count - 1) / 2
        return count * self._base_seconds(batch) + self._per_context * read

    def _pass(self, count: int, seconds: float) -> None:
        self._iteration += count
        self._context += count * len(self._batch)
        self._clock += seconds

    def _pass_until(self, to: float) -> None:
        """Let whole iterations pass, as many as end until ``to``."""
        batch = len(self._batch)
        square = self._per_context * batch / 2
        linear = self._base_seconds(batch) + self._per_context * (self._context - batch / 2)
        left = to - self._clock
        # Of square·k² + linear·k = left, in the form that does not lose digits.
        count = int(2 * left / (linear + math.sqrt(linear * linear + 4 * square * left)))
        while count > 0 and self._clock + self._seconds(count) > to:
            count -= 1
        if count > 0:
            self._pass(count, self._seconds(count))
            self._fit()

    def _end(self, events: list[EngineEvent]) -> None:
        while self._ends and self._ends[0][0] <= self._iteration:
            last, key = heappop(self._ends)
            if self._ends_then(last, key):
                events.append(GenerationEnded(key, self._clock, self._leave(self._batch[key])))
                del self._known[key]
        self._fit()


def _order(sequence: _Sequence) -> Order:
    return sequence.order
