"""Parts of `benchmarks.rollout_card`: what is measured of one or two engines, and what follows from the moments of tokens.

profile   seconds per token over batch × context, of streams that generate at once with their prompts in the cache; seconds of uncached
          prompts; tokens of cache: a `DegreeProfile`
order     requests of two priorities wait for full slots: the share of pairs in which the urgent one began first (1: the engine ranks,
          0.5: it does not)
fold      seconds to sleep, to wake, and from waking to an answer, which has to be that of before
move      seconds to the first token of a long prompt: with its cache, without it, and at another engine after a move
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.rollout_card_engine import EngineUnderTest, TimedStream, Unmeasured
from domain.engine_profiles import DegreeProfile
from domain.fleets import FleetEngine, FleetWorker
from managers.llm.cache_moves import CacheMove, CacheMoveFailed, choose_mover, movers

#: Longest time until the slots are full.
_FILL_SECONDS: Final = 300.0
#: Part of the cache that a measurement may fill.
_FILL: Final = 0.9
_ROUNDS: Final = 3
#: Urgent and other priorities; the integer of the urgent one is lower, as Tangram sends them.
URGENT: Final = 1
RELAXED: Final = 31
_SLEEPING: Final = {
    FleetEngine.VLLM: (
        "/sleep?level=1", "/wake_up",
        "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1",
    ),
    FleetEngine.SGLANG: (
        "/release_memory_occupation", "/resume_memory_occupation",
        "start SGLang with --enable-memory-saver",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Points to measure."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    #: Tokens of each stream.
    tokens: int = 128


def fitting(grid: Grid, slots: int, kv_tokens: float) -> Grid:
    """Return the points that an engine with so many slots and tokens of cache can have. Raises Unmeasured."""
    room = _FILL * kv_tokens - grid.tokens
    found = Grid(
        tuple(each for each in grid.batches if each <= slots),
        tuple(each for each in grid.contexts if each <= room),
        tuple(each for each in grid.prefills if each <= room),
        grid.tokens,
    )
    if not (found.batches and found.contexts and found.prefills):
        raise Unmeasured(f"{kv_tokens:.0f} tokens of cache have room for no point of {grid}")
    return found


def token_seconds(streams: Sequence[TimedStream]) -> float | None:
    """Return seconds per token of each of these streams while all of them generated; None: they hardly did at once."""
    begin = max(each.moments[0][0] for each in streams)
    end = min(each.moments[-1][0] for each in streams)
    counts = [_tokens_at(each, end) - _tokens_at(each, begin) for each in streams]
    if end <= begin or min(counts) < 1:
        return None
    return (end - begin) / (sum(counts) / len(counts))


def _tokens_at(stream: TimedStream, moment: float) -> float:
    """Return the tokens of a stream at a moment, between its first and its last; linear between two events."""
    before = stream.moments[0]
    for after in stream.moments[1:]:
        if after[0] >= moment:
            share = (moment - before[0]) / max(after[0] - before[0], 1e-12)
            return before[1] + max(0.0, share) * (after[1] - before[1])
        before = after
    return float(before[1])


def completed(
    contexts: Sequence[int], table: Sequence[Sequence[float]]
) -> tuple[list[list[float]], int]:
    """Continue each row by its last slope where its batch did not fit with that context; return also how many entries that was.

    No engine runs these batches at once, so that no decision depends on them. A row without two measurements is left out, and with it
    all that follow.
    """
    rows: list[list[float]] = []
    filled = 0
    for known in table:
        if len(known) < min(2, len(contexts)):
            break
        slope = 0.0
        if len(known) > 1:
            last = len(known) - 1
            slope = (known[last] - known[last - 1]) / (contexts[last] - contexts[last - 1])
        rest = [
            known[-1] + max(0.0, slope) * (context - contexts[len(known) - 1])
            for context in contexts[len(known) :]
        ]
        filled += len(rest)
        rows.append([*known, *rest])
    return rows, filled


def order_share(urgent: Sequence[float], relaxed: Sequence[float]) -> float:
    """Return the share of pairs in which the urgent request began first."""
    pairs = [(mine, other) for mine in urgent for other in relaxed]
    return sum(mine < other for mine, other in pairs) / len(pairs)


async def measure_point(engine: EngineUnderTest, batch: int, context: int, tokens: int) -> float:
    """Return seconds per token of a batch with so much context each. Raises Unmeasured."""
    prompts = [engine.prompt(max(1, context)) for _ in range(batch)]
    for prompt in prompts:  # into the cache, so that the streams begin together
        await engine.stream(prompt, 1)
    streams = await asyncio.gather(*(engine.stream(prompt, tokens) for prompt in prompts))
    seconds = token_seconds(streams)
    if seconds is None:
        raise Unmeasured(f"{batch} streams did not generate at once: give more --tokens")
    return seconds


async def measure_prefill(engine: EngineUnderTest, tokens: int, token: float) -> float:
    """Return the seconds of an uncached prompt; ``token``: those of the token that is sampled after it."""
    found = [(await engine.stream(engine.prompt(tokens), 1)).first_seconds for _ in range(_ROUNDS)]
    return max(median(found) - token, 1e-6)


async def profile(
    engine: EngineUnderTest, grid: Grid, kv_tokens: float
) -> tuple[DegreeProfile, dict[str, Any]]:
    """Measure the profile of an engine, and what has to be known beside it."""
    grid = fitting(grid, engine.slots, kv_tokens)
    table: list[list[float]] = []
    for batch in grid.batches:
        fits = [each for each in grid.contexts if batch * (each + grid.tokens) <= _FILL * kv_tokens]
        table.append([await measure_point(engine, batch, each, grid.tokens) for each in fits])
    rows, filled = completed(grid.contexts, table)
    if not rows:
        raise Unmeasured("the context of no batch could be measured: give smaller --contexts")
    prefill = [(each, await measure_prefill(engine, each, rows[0][0])) for each in grid.prefills]
    found = DegreeProfile(
        engine.degree,
        grid.batches[: len(rows)],
        grid.contexts,
        tuple(tuple(row) for row in rows),
        tuple(prefill),
        kv_tokens,
    )
    return found, {"filled_entries": filled, "left_out_batches": list(grid.batches[len(rows) :])}


async def order(engine: EngineUnderTest, tokens: int, pairs: int = 8) -> dict[str, Any]:
    """Measure whether an engine serves the urgent ones of waiting requests first."""
    begun = asyncio.Semaphore(0)
    fill = [
        asyncio.create_task(engine.stream(engine.prompt(32), tokens, 0, begun.release))
        for _ in range(engine.slots)
    ]
    async with asyncio.timeout(_FILL_SECONDS):
        for _ in fill:  # they have the slots before the others come
            await begun.acquire()
    kinds = [RELAXED, URGENT] * pairs
    waiting = [
        asyncio.create_task(engine.stream(engine.prompt(32), tokens // 4, kind)) for kind in kinds
    ]
    try:
        await asyncio.gather(*fill)
        streams = await asyncio.gather(*waiting)
    finally:
        for task in (*fill, *waiting):
            task.cancel()
    first: dict[int, list[float]] = {URGENT: [], RELAXED: []}
    for kind, stream in zip(kinds, streams, strict=True):
        first[kind].append(stream.moments[0][0])
    return {
        "requests": len(kinds),
        "urgent_first_share": order_share(first[URGENT], first[RELAXED]),
    }


async def fold(engine: EngineUnderTest) -> dict[str, Any]:
    """Measure how an engine sleeps and wakes. Raises Unmeasured where it cannot."""
    if engine.engine not in _SLEEPING:
        raise Unmeasured(f"engine {engine.engine} has no sleep")
    sleep, wake, wanted = _SLEEPING[engine.engine]
    prompt = engine.prompt(256)
    before = await engine.answer(prompt, 16)
    sleeps, wakes, firsts, same = [], [], [], True
    for _ in range(_ROUNDS):
        sleeps.append(await engine.post(sleep, wanted))
        wakes.append(await engine.post(wake, wanted))
        began = time.perf_counter()
        same = await engine.answer(prompt, 16) == before and same
        firsts.append(time.perf_counter() - began)
    return {
        "sleep_seconds": median(sleeps),
        "wake_seconds": median(wakes),
        "answer_after_wake_seconds": median(firsts),
        "same_answer": same,
    }


async def move(
    source: EngineUnderTest, target: EngineUnderTest, tokens: int, controller: str = ""
) -> dict[str, Any]:
    """Measure the first token of a prompt of so many tokens: cached, uncached, and after a move to ``target``."""
    workers = [
        FleetWorker(number=number, name=f"w{number}", url=each.url, slots=each.slots)
        for number, each in enumerate((source, target), 1)
    ]
    mover, states = await choose_mover(movers(source.client, controller), workers)
    prompt = source.prompt(tokens)
    await source.stream(prompt, 1)
    cached = await source.stream(prompt, 1)
    uncached = await target.stream(target.prompt(tokens), 1)
    found: dict[str, Any] = {
        "tokens": tokens,
        "adapter": mover.adapter.value,
        "probes": {state.adapter.value: state.detail for state in states},
        "cached_seconds": cached.first_seconds,
        "uncached_seconds": uncached.first_seconds,
    }
    began = time.perf_counter()
    try:
        found["moved_tokens"] = await mover.move(
            CacheMove("rollout-card", workers[0], workers[1], tokens, prompt)
        )
    except CacheMoveFailed as error:
        found["failed"] = str(error)
    found["move_seconds"] = time.perf_counter() - began
    after = await target.stream(prompt, 1)
    found["after_move_seconds"] = after.first_seconds
    found["cached_after_move"] = after.cached_tokens
    return found
