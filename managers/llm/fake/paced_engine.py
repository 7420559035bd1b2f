"""PacedEngine: an `EngineModel` whose virtual seconds pass with real ones, some times faster.

One task advances the model at its next change, and every few milliseconds while answers are streamed. A generation that is
cancelled leaves the engine at once. Asleep, an engine has no caches and takes no generations.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.generations import (
    EngineEvent,
    GenerationBegan,
    GenerationEnded,
    ModelledGeneration,
)
from managers.llm.fake.prefix_cache import PrefixBlocks
from managers.llm.fake.word_tokens import answer_ids

#: Real seconds between two looks at what streams have.
STREAM_SECONDS = 0.005


class EngineAsleep(Exception):
    """The engine takes no generation now."""


@dataclass
class PacedAnswer:
    """One generation on its way."""

    key: str
    prompt_ids: list[int]
    ids: list[int]
    sequence: str
    cached_tokens: int = 0
    #: Tokens that are sampled, of ``ids``.
    sampled: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def complete(self) -> bool:
        """All tokens are sampled."""
        return self.sampled == len(self.ids)


class PacedEngine:
    """One worker that answers over time; ``speed``: virtual seconds in a real one."""

    def __init__(self, model: EngineModel, speed: float = 1.0) -> None:
        self.model = model
        self._speed = speed
        self.asleep = False
        self.asked = 0
        self._blocks = PrefixBlocks()
        self._answers: dict[str, PacedAnswer] = {}
        self._streams = 0
        #: Virtual moment at which the speed was set, and the real one.
        self._virtual = 0.0
        self._real: float | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Return the virtual time; 0 at the first request."""
        time = asyncio.get_running_loop().time()
        if self._real is None:
            self._real = time
        return self._virtual + (time - self._real) * self._speed

    def set_speed(self, speed: float) -> None:
        """Let virtual time pass at another speed from now on."""
        self._virtual = self.now()
        self._real = asyncio.get_running_loop().time()
        self._speed = speed
        self._changed.set()

    async def answer(
        self, prompt: list[int], tokens: int, *, priority: float = 0.0, seed: int = 0
    ) -> PacedAnswer:
        """Return an answer once it is complete. Raises PromptTooLong, EngineAsleep."""
        found = self._submit(prompt, tokens, priority, seed)
        try:
            while not found.complete:
                await self._wait(found)
        finally:
            self._drop(found)
        return found

    async def stream(
        self, prompt: list[int], tokens: int, *, priority: float = 0.0, seed: int = 0
    ) -> AsyncIterator[PacedAnswer]:
        """Yield an answer each time that it has more tokens. Raises PromptTooLong, EngineAsleep."""
        found = self._submit(prompt, tokens, priority, seed)
        self._streams += 1
        try:
            said = -1
            while not found.complete:
                await self._wait(found)
                if found.sampled > max(said, 0) or found.complete:
                    said = found.sampled
                    yield found
        finally:
            self._streams -= 1
            self._drop(found)

    def sleep(self) -> None:
        """Give up the GPU: caches are void, and generations on their way end where they are."""
        self.asleep = True
        for answer in list(self._answers.values()):
            self._drop(answer)
            answer.ids = answer.ids[: answer.sampled]
            answer.progress.set()
        self.forget_caches()

    def wake(self) -> None:
        """Take generations again."""
        self.asleep = False

    def forget_caches(self) -> None:
        """Drop all caches, as after new weights."""
        self.model.cache.clear()
        self._blocks.clear()

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _submit(self, prompt: list[int], tokens: int, priority: float, seed: int) -> PacedAnswer:
        if self.asleep:
            raise EngineAsleep("the engine is asleep: wake it up first")
        now, continued = self.now(), self._blocks.continued(prompt)
        self.asked += 1
        key = f"generation-{self.asked}"
        ids = list(islice(answer_ids(prompt, seed), tokens))
        generation = ModelledGeneration(
            key, len(prompt), tokens, continued.sequence, priority, continued.tokens
        )
        self._take(self.model.submit(generation, now))
        found = self._answers[key] = PacedAnswer(key, prompt, ids, continued.sequence)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._pass_time())
        return found

    async def _wait(self, answer: PacedAnswer) -> None:
        await answer.progress.wait()
        answer.progress.clear()
        if self.asleep:
            raise EngineAsleep("the engine fell asleep")

    def _drop(self, answer: PacedAnswer) -> None:
        if self._answers.pop(answer.key, None) is not None and not answer.complete:
            answer.sampled, events = self.model.abort(answer.key, self.now())
            self._take(events)
            self._changed.set()

    async def _pass_time(self) -> None:
        while True:
            self._changed.clear()
            now = self.now()
            self._take(self.model.advance(now))
            if self._streams:
                self._show_progress()
            left = max(0.0, self.model.next_event() - now) / self._speed
            if self._streams:
                left = min(left, STREAM_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(left) else left):
                    await self._changed.wait()

    def _take(self, events: list[EngineEvent]) -> None:
        for event in events:
            answer = self._answers.get(event.key)
            if answer is None:
                continue
            if isinstance(event, GenerationBegan):
                answer.cached_tokens = max(answer.cached_tokens, event.cached_tokens)
            elif isinstance(event, GenerationEnded):
                answer.sampled = len(answer.ids)
                self._blocks.add(answer.sequence, answer.prompt_ids + answer.ids)
                answer.progress.set()

    def _show_progress(self) -> None:
        for answer in self._answers.values():
            sampled = self.model.sampled(answer.key)
            if not answer.complete and sampled > answer.sampled:
                answer.sampled = sampled
                answer.progress.set()
