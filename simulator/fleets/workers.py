"""Workers: modelled engines on one agenda.

Each engine is advanced at the moment of its next change and whenever a generation is submitted. What happens is passed on in the
order of time, with the worker's number. A wake-up that was superseded is recognised by its count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_spec import EngineSpec
from managers.llm.fake.generations import EngineEvent, ModelledGeneration
from simulator.agenda import Agenda

Notice = Callable[[int, EngineEvent], None]
_NEVER: Final = float("inf")


class ModelledWorkers:
    """Engines by number."""

    def __init__(self, agenda: Agenda, spec: EngineSpec, notice: Notice, *, preempts: bool) -> None:
        self._agenda = agenda
        self._spec = spec
        self._notice = notice
        self._preempts = preempts
        self._engines: dict[int, EngineModel] = {}
        self._wakes: dict[int, int] = {}
        self._planned: dict[int, float] = {}
        #: Tokens of prompts of engines that were stopped: computed, cached.
        self._former = [0, 0]

    @property
    def computed_tokens(self) -> int:
        """Tokens of prompts that were computed, of all workers."""
        return self._former[0] + sum(each.computed_tokens for each in self._engines.values())

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts that were cached, of all workers."""
        return self._former[1] + sum(each.cached_tokens for each in self._engines.values())

    def start(self, number: int, degree: int, slots: int) -> None:
        """Add a worker that takes generations from now on."""
        self._engines[number] = EngineModel(
            self._spec, degree, slots, preempts=self._preempts, at=self._agenda.now
        )
        self._wakes[number] = 0
        self._planned[number] = _NEVER

    def stop(self, number: int) -> None:
        """End a worker without generations; its caches are void."""
        engine = self._engines.pop(number)
        assert not engine.generations, f"worker {number} has generations"
        self._wakes[number] += 1
        self._former[0] += engine.computed_tokens
        self._former[1] += engine.cached_tokens

    def withdraw(self, number: int, key: str) -> int:
        """End a generation; return the tokens that it has."""
        sampled, events = self._engines[number].abort(key, self._agenda.now)
        self._tell(number, events)
        self._plan(number)
        return sampled

    def submit(self, number: int, generation: ModelledGeneration) -> None:
        """Queue a generation; what is submitted at one moment is ordered before any of it begins."""
        now = self._agenda.now
        self._tell(number, self._engines[number].submit(generation, now))
        self._plan(number)

    def move(self, sequence: str, source: int, target: int) -> int:
        """Move a cache; return its tokens, 0 where it has none any more or an end is gone."""
        if source not in self._engines or target not in self._engines:
            return 0
        tokens = self._engines[source].export(sequence)
        self._engines[target].receive(sequence, tokens)
        return tokens

    def _plan(self, number: int) -> None:
        moment = max(self._engines[number].next_event(), self._agenda.now)
        if moment != self._planned[number]:
            self._planned[number] = moment
            self._wakes[number] += 1
            if moment < _NEVER:
                self._agenda.at(moment, self._wake, (number, self._wakes[number]))

    def _wake(self, entry: tuple[int, int]) -> None:
        number, count = entry
        if self._wakes[number] != count:
            return
        self._planned[number] = _NEVER
        self._tell(number, self._engines[number].advance(self._agenda.now))
        if number in self._engines:  # what happened may have put it to sleep
            self._plan(number)

    def _tell(self, number: int, events: list[EngineEvent]) -> None:
        for event in events:
            self._notice(number, event)
