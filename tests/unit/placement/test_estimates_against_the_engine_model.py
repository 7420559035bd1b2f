"""Estimates of ends, and the choice of folds, agree with the model of an engine in virtual time."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import pytest

from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_spec import MODELLED, EngineSpec
from managers.llm.fake.generations import EngineEvent, GenerationEnded, ModelledGeneration
from placement.estimates import Work, drain_seconds
from placement.facts import Prediction, TrajectoryFacts, WorkerFacts
from placement.fold import LeftOver, WideSite, estimated

STEPS = 5
#: Tokens of the first prompt of each trajectory.
PROMPT = 500


class Rest(NamedTuple):
    """What is left of a trajectory: equal steps, a tool before each generation."""

    tokens: int
    tool_seconds: float = 0.0
    context: int = PROMPT


def long_tailed(count: int, tool_seconds: float, seed: int) -> list[Rest]:
    drawn = random.Random(seed)
    return [
        Rest(STEPS * int(min(20_000, drawn.lognormvariate(8, 0.8)) / STEPS), tool_seconds)
        for _ in range(count)
    ]


def engine_seconds(spec: EngineSpec, degree: int, slots: int, rests: list[Rest]) -> float:
    """Return when the engine has ended the last, the longest served first; all contexts are computed again."""
    engine, end = EngineModel(spec, degree, slots), 0.0
    steps, contexts = [STEPS] * len(rests), [rest.context for rest in rests]
    tools = [(rest.tool_seconds / STEPS, number) for number, rest in enumerate(rests)]
    heapq.heapify(tools)

    def ended(events: list[EngineEvent]) -> None:
        nonlocal end
        for event in events:
            if isinstance(event, GenerationEnded):
                number, end = int(event.key), max(end, event.at)
                steps[number] -= 1
                contexts[number] += event.sampled_tokens
                if steps[number]:
                    gap = rests[number].tool_seconds / STEPS
                    heapq.heappush(tools, (event.at + gap, number))

    while tools or engine.generations:
        now = min(tools[0][0] if tools else float("inf"), engine.next_event())
        ended(engine.advance(now))
        while tools and tools[0][0] <= now:
            number = heapq.heappop(tools)[1]
            tokens = rests[number].tokens // STEPS
            ended(
                engine.submit(
                    ModelledGeneration(
                        str(number), contexts[number], tokens, str(number), -steps[number] * tokens
                    ),
                    now,
                )
            )
    return end


@pytest.mark.parametrize("degree", [1, 8])
@pytest.mark.parametrize(
    ("cache", "count", "tool_seconds", "slots"),
    [(0.05, 12, 0, 100), (0.05, 60, 20, 100), (0.05, 60, 20, 20), (1.0, 60, 20, 100)],
    ids=["few", "tools", "slots bind", "caches bind"],
)
def test_an_estimate_is_within_five_percent_of_the_engine(
    cache, count, tool_seconds, slots, degree
):
    spec = MODELLED["14B"].with_cache(cache)
    rests = long_tailed(count, tool_seconds, seed=count)

    found = drain_seconds(
        spec,
        WorkerFacts(1, slots, degree),
        Work([rest.tokens for rest in rests], [tool_seconds] * count, [PROMPT] * count),
    )

    assert found == pytest.approx(engine_seconds(spec, degree, slots, rests), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("count", "context", "longest", "folded"),
    [(4, 2000, 20_000, True), (16, 8000, 20_000, True), (16, 8000, 250, False), (200, 8000, 500, False)],
    ids=["few and long", "more and long", "short", "many contexts"],
)  # fmt: skip
def test_a_fold_is_chosen_where_the_engine_ends_sooner_with_it(
    count, context, longest, folded, seed
):
    spec, wake = MODELLED["14B"].with_cache(0.05), 5.0
    narrow = tuple(WorkerFacts(number, 100) for number in range(8))
    wide = WorkerFacts(8, 800, degree=8, usable=False)
    rests = [
        rest._replace(tokens=min(rest.tokens, longest)) for rest in long_tailed(count, 5.0, seed)
    ]
    left = [
        LeftOver(
            TrajectoryFacts(
                str(number), number, context_tokens=context, worker=number % 8,
                prediction=Prediction(rest.tokens, rest.tool_seconds),
            )
        )
        for number, rest in enumerate(rests)
    ]  # fmt: skip

    found = estimated(left, WideSite(wide, narrow, wake), spec)

    # Where they are, their caches are warm; a cache that is read costs little here.
    warm = [rest._replace(context=1) for rest in rests]
    stay = max(engine_seconds(spec, 1, 100, warm[place::8]) for place in range(min(8, count)))
    cold = [rest._replace(context=context) for rest in rests]
    fold = wake + engine_seconds(spec, 8, 800, cold)
    assert found is not None
    assert (found.gain_seconds > 0) == (fold < stay) == folded
    assert found.stay_seconds == pytest.approx(stay, rel=0.05)
    assert found.fold_seconds == pytest.approx(fold, rel=0.25)
