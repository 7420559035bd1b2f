"""The modelled engine: moments that can be computed by hand, and the same results as a model that goes token by token."""

from __future__ import annotations

import math
from random import Random

import pytest

from managers.llm.fake.engine_model import HEADROOM, EngineModel, PromptTooLong
from managers.llm.fake.engine_spec import MODELLED, EngineSpec
from managers.llm.fake.generations import (
    EngineEvent,
    GenerationBegan,
    GenerationEnded,
    GenerationPreempted,
    ModelledGeneration,
)
from managers.llm.fake.prefix_cache import PrefixCache

#: 10 ms a token, 1 ms for each token of a prompt; the time of caches is nothing.
PLAIN = EngineSpec("plain", 5e9, 1.0, memory_bytes=1e10 + 1e6, bandwidth=1e12, flops=1e30,
                   prefill_rate=1000.0, host_bytes=1e6, host_bandwidth=1e9)  # fmt: skip


def spec_with(capacity: float, host: float = 1e6) -> EngineSpec:
    """Return PLAIN with so many tokens of cache on the GPU and on the host."""
    return EngineSpec("small", 5e9, 1.0, memory_bytes=1e10 + capacity, bandwidth=1e12, flops=1e30,
                      prefill_rate=1000.0, host_bytes=host, host_bandwidth=1e9)  # fmt: skip


def asked(
    key: str, prompt: int, tokens: int, sequence: str = "", priority: float = 0.0
) -> ModelledGeneration:
    return ModelledGeneration(key, prompt, tokens, sequence or key, priority)


def cached(event: EngineEvent) -> int:
    assert isinstance(event, GenerationBegan)
    return event.cached_tokens


def ends(events: list[EngineEvent]) -> dict[str, float]:
    return {each.key: each.at for each in events if isinstance(each, GenerationEnded)}


def begins(events: list[EngineEvent]) -> dict[str, float]:
    return {each.key: each.at for each in events if isinstance(each, GenerationBegan)}


def test_one_generation_takes_its_prompt_and_its_tokens():
    engine = EngineModel(PLAIN, 1, 4)
    engine.submit(asked("a", 100, 50), 0.0)

    assert ends(engine.advance(10.0)) == {"a": pytest.approx(0.1 + 0.5, rel=1e-3)}


def test_a_prompt_stalls_what_runs():
    engine = EngineModel(PLAIN, 1, 4)
    engine.submit(asked("a", 10, 100), 0.0)
    engine.submit(asked("b", 500, 1), 0.5)

    found = ends(engine.advance(10.0))

    assert found["a"] == pytest.approx(0.01 + 1.0 + 0.5, rel=1e-3)


def test_a_generation_waits_for_a_slot_and_the_smaller_priority_is_first():
    engine = EngineModel(PLAIN, 1, 1)
    events = []
    for key, priority in (("a", 5.0), ("late", 2.0), ("early", 1.0)):
        events += engine.submit(asked(key, 1, 10, priority=priority), 0.0 if key == "a" else 0.01)

    found = begins(events + engine.advance(10.0))

    assert list(found) == ["a", "early", "late"]


def test_what_is_submitted_together_is_ordered_before_any_of_it_begins():
    engine = EngineModel(PLAIN, 1, 1)
    for key, priority in (("last", 3.0), ("first", 1.0)):
        engine.submit(asked(key, 1, 1, priority=priority), 0.0)

    assert list(begins(engine.advance(1.0))) == ["first", "last"]


def test_the_next_turn_computes_only_what_is_new():
    engine = EngineModel(PLAIN, 1, 4)
    engine.submit(asked("a1", 100, 50, sequence="a"), 0.0)
    engine.advance(1.0)
    engine.submit(asked("a2", 180, 1, sequence="a"), 1.0)

    (began, _) = engine.advance(2.0)

    assert isinstance(began, GenerationBegan)
    assert began.cached_tokens == 150
    assert began.stall_seconds == pytest.approx(0.03)


def test_a_cache_that_left_for_the_host_comes_back_from_there():
    engine = EngineModel(spec_with(1000), 1, 4)
    engine.submit(asked("a1", 500, 100, sequence="a"), 0.0)
    engine.advance(5.0)
    engine.submit(asked("b", 700, 100), 5.0)
    engine.advance(10.0)

    assert engine.cache.gpu_tokens == 800
    assert engine.cache.host_tokens == 600
    engine.submit(asked("a2", 600, 1, sequence="a"), 10.0)
    assert cached(engine.advance(20.0)[0]) == 599


def test_without_a_host_tier_the_prompt_is_computed_again():
    engine = EngineModel(spec_with(1000, host=0.0), 1, 4)
    engine.submit(asked("a1", 500, 100, sequence="a"), 0.0)
    engine.submit(asked("b", 700, 100), 5.0)
    engine.submit(asked("a2", 600, 1, sequence="a"), 10.0)

    assert cached(engine.advance(20.0)[0]) == 0


def test_the_sequence_that_is_served_last_gives_its_memory_up():
    engine = EngineModel(spec_with(1000), 1, 4)
    for key, priority in (("a", 1.0), ("c", 3.0), ("b", 2.0)):
        engine.submit(asked(key, 200, 300, priority=priority), 0.0)

    events = engine.advance(60.0)

    preempted = [each.key for each in events if isinstance(each, GenerationPreempted)]
    assert preempted[0] == "c"
    assert next(iter(ends(events))) == "a"
    assert set(ends(events)) == {"a", "b", "c"}
    assert {each.sampled_tokens for each in events if isinstance(each, GenerationEnded)} == {300}


def test_a_full_batch_gives_way_only_when_it_preempts():
    for preempts in (False, True):
        engine = EngineModel(PLAIN, 1, 1, preempts=preempts)
        engine.submit(asked("short", 10, 1000, priority=2.0), 0.0)
        engine.submit(asked("equal", 10, 10, priority=2.0), 1.0)
        engine.submit(asked("long", 10, 10, priority=1.0), 1.0)

        events = engine.advance(100.0)

        assert any(isinstance(each, GenerationPreempted) for each in events) == preempts
        assert list(ends(events)) == (
            ["long", "short", "equal"] if preempts else ["short", "long", "equal"]
        )


def test_a_prompt_that_never_fits_is_refused():
    engine = EngineModel(spec_with(1000), 1, 4)

    with pytest.raises(PromptTooLong, match="1200 tokens, where 1000 fit"):
        engine.submit(asked("a", 1000, 200), 0.0)


def test_an_aborted_generation_leaves_its_slot_and_its_cache():
    engine = EngineModel(PLAIN, 1, 1)
    engine.submit(asked("a", 10, 1000), 0.0)
    engine.submit(asked("b", 10, 10), 0.0)

    sampled, _ = engine.abort("a", 1.015)
    events = engine.advance(5.0)

    assert sampled == 100
    assert engine.cache.tokens("a") == 110
    assert list(ends(events)) == ["b"]


def test_a_cache_moves_between_workers():
    source, target = EngineModel(PLAIN, 1, 4), EngineModel(PLAIN, 1, 4)
    source.submit(asked("a1", 100, 50, sequence="a"), 0.0)
    source.advance(1.0)

    target.receive("a", source.export("a"))
    target.submit(asked("a2", 160, 1, sequence="a"), 1.0)

    assert source.cache.tokens("a") == 0
    assert cached(target.advance(2.0)[0]) == 150


def test_wide_workers_are_faster_for_one_and_less_so_than_they_have_gpus():
    spec = MODELLED["14B"]
    times = [spec.token_seconds(degree, 1, 10_000.0) for degree in (1, 2, 4, 8)]

    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] < 8
    assert MODELLED["32B"].kv_tokens(1) < 40_000 < MODELLED["32B"].kv_tokens(2)


def test_the_host_tier_forgets_what_has_not_been_used_for_longest():
    cache = PrefixCache(100)
    for key in ("a", "b", "c"):
        cache.put(key, 60)
        cache.fit(60)

    assert [key in cache for key in "abc"] == [False, True, True]
    cache.clear()
    assert (cache.gpu_tokens, cache.host_tokens) == (0, 0)


class _Slow:
    """The rules of `EngineModel` again, iteration by iteration."""

    def __init__(self, spec: EngineSpec, slots: int) -> None:
        self.spec, self.slots, self.capacity = spec, slots, spec.kv_tokens(1)
        self.clock, self.entered = 0.0, 0
        self.waiting: list[tuple[float, int, ModelledGeneration, int]] = []
        self.batch: list[list] = []
        self.cache = PrefixCache(spec.host_tokens(1))
        self.ends: dict[str, float] = {}

    def context(self) -> int:
        return sum(each[0].prompt_tokens + each[1] for each in self.batch)

    def leave(self, entry: list) -> None:
        self.batch.remove(entry)
        self.cache.put(entry[0].sequence, entry[0].prompt_tokens + entry[1])
        self.cache.fit(self.capacity - self.context())

    def run(self, generations: list[tuple[float, ModelledGeneration]]) -> dict[str, float]:
        left = list(generations)
        while left or self.waiting or self.batch:
            while left and (left[0][0] <= self.clock or not (self.waiting or self.batch)):
                at, each = left.pop(0)
                self.clock = max(self.clock, at)
                self.entered += 1
                self.waiting.append((each.priority, self.entered, each, 0))
            self.waiting.sort(key=lambda each: each[:2])
            if self.admit():
                continue
            while len(self.batch) > 1 and self.context() + len(self.batch) > self.capacity:
                last = max(self.batch, key=lambda each: each[2])
                self.leave(last)
                self.waiting.append((*last[2], last[0], last[1]))
            self.clock += self.spec.base_seconds(1, len(self.batch))
            self.clock += self.spec.context_seconds(1) * self.context()
            for entry in list(self.batch):
                entry[1] += 1
            for entry in [each for each in self.batch if each[1] == each[0].tokens]:
                self.leave(entry)
                self.ends[entry[0].key] = self.clock
            self.cache.fit(self.capacity - self.context())
        return self.ends

    def admit(self) -> bool:
        """Begin the first of the queue; newcomers are looked at after each."""
        if not self.waiting or len(self.batch) == self.slots:
            return False
        priority, entered, each, sampled = self.waiting[0]
        needed = each.prompt_tokens + sampled
        room = self.capacity * (1 - HEADROOM) - self.context() - len(self.batch)
        if self.batch and needed > room:
            return False
        self.waiting.pop(0)
        hit = self.cache.take(each.sequence, needed - 1)
        self.clock += self.spec.prefill_seconds(1, needed - hit.gpu_tokens - hit.host_tokens)
        self.clock += self.spec.load_seconds(hit.host_tokens)
        self.batch.append([each, sampled, (priority, entered)])
        self.cache.fit(self.capacity - self.context())
        return True


@pytest.mark.parametrize("seed", range(8))
def test_jumps_give_what_single_iterations_give(seed: int):
    chooser = Random(seed)
    spec = EngineSpec("s", 5e9, 1e6, memory_bytes=1e10 + 1.5e9, bandwidth=1e12, flops=1e14,
                      prefill_rate=1000.0, host_bytes=chooser.choice([0.0, 5e8, 1e12]))  # fmt: skip
    generations, at = [], 0.0
    for number in range(30):
        at += chooser.expovariate(1.0)
        prompt, tokens = chooser.randint(1, 300), chooser.randint(1, 120)
        generations.append((at, asked(f"g{number}", prompt, tokens,
                                      priority=float(chooser.randint(0, 2)))))  # fmt: skip
    engine, events = EngineModel(spec, 1, 6), []
    for moment, generation in generations:
        events += engine.submit(generation, moment)
    while (moment := engine.next_event()) < math.inf:
        events += engine.advance(moment)

    assert ends(events) == pytest.approx(_Slow(spec, 6).run(generations), rel=1e-9)


def test_how_often_the_time_is_asked_for_changes_nothing():
    found = []
    for pause in (0.013, 1e9):
        engine, events, now = EngineModel(spec_with(2000), 1, 3), [], 0.0
        for number in range(6):
            events += engine.submit(asked(f"g{number}", 100 + number, 200 + number), 0.0)
        while engine.generations:
            now = min(now + pause, max(engine.next_event(), now) if pause > 1 else now + pause)
            events += engine.advance(now)
        found.append(ends(events))

    assert found[0] == pytest.approx(found[1])
