"""Benchmarks of rollouts compare what they say: equal plans, prompts with different rewards, work that is left or cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from benchmarks.rival_prorl import MinHeap
from benchmarks.rollouts.plans import (
    TOOL_SECONDS,
    PlannedRollout,
    PlannedStep,
    drawn,
    prompts,
    recorded,
    steps_in,
)
from benchmarks.rollouts.trainer import COMPLETED, Ended, Training, train


class ServiceOfTest:
    """Ends rollouts in the order of their plans, all but the last ones of each step, which end when they are cancelled."""

    def __init__(self, ends: int) -> None:
        self._ends = ends
        self._left: dict[str, asyncio.Future[Ended]] = {}
        self.cancelled: list[str] = []

    async def submit(self, plans: Sequence[PlannedRollout]) -> list[str]:
        for number, plan in enumerate(plans):
            self._left[plan.name] = end = asyncio.get_running_loop().create_future()
            if number < self._ends:
                end.set_result(Ended(COMPLETED, plan.reward, tools=2, tool_seconds=1.0))
        return [plan.name for plan in plans]

    async def wait(self, rollout: str) -> Ended:
        return await self._left[rollout]

    async def cancel(self, rollouts: Sequence[str]) -> None:
        self.cancelled += rollouts
        for each in rollouts:
            self._left[each].set_result(Ended("cancelled", None))


def test_a_question_has_the_steps_of_its_plan() -> None:
    steps = (PlannedStep(60, 0.42), PlannedStep(75, 0.0))
    plan = PlannedRollout("a", "a", steps, 1.0)
    assert steps_in(f"<|im_start|>user\n{plan.question}<|im_end|>\n<|im_start|>assistant") == steps


def test_drawn_tools_have_the_mean_of_the_paper() -> None:
    chance = Random(1)
    steps = [step for _ in range(200) for step in drawn()(chance)]
    assert mean(each.tool_seconds for each in steps) == pytest.approx(TOOL_SECONDS, rel=0.1)


def test_recorded_lengths_are_scaled_as_a_whole(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    tools = [{"tool": "bash", "dur_s": 2.0 * (number + 1)} for number in range(6)]
    others = [{"tool": "read", "dur_s": 100.0}] * 3
    trace.write_text(json.dumps({"steps": [*others, *tools]}) + "\n")

    def found(scaled: bool) -> list[float]:
        return [each.tool_seconds for each in recorded(trace, scaled=scaled)(Random(1))]

    assert found(scaled=False) == [2.0, 12.0]
    assert found(scaled=True) == pytest.approx([0.12, 0.72])


def test_the_same_seed_makes_the_same_prompts_with_rewards_that_differ_in_some() -> None:
    once, again = (prompts(20, 4, drawn(), seed=3) for _ in range(2))
    assert once == again
    rewards = {plan.prompt: set[float]() for plan in once}
    for plan in once:
        rewards[plan.prompt].add(plan.reward)
    assert sorted(len(each) for each in rewards.values()) == [1] * 8 + [2] * 12


async def test_a_step_that_cleans_up_cancels_what_is_left_once_it_has_its_prompts() -> None:
    service = ServiceOfTest(ends=40)
    totals = await train(service, Training(drawn(), wanted=3, submitted=16, samples=4, steps=1))
    assert totals.informative == 3
    assert len(service.cancelled) == 24
    assert totals.outcomes["cancelled"] == 24
    assert totals.tool_seconds == 40.0


async def test_a_step_without_clean_up_waits_for_all_of_its_rollouts() -> None:
    service = ServiceOfTest(ends=64)
    training = Training(drawn(), wanted=3, submitted=16, samples=4, steps=2, clean_up=False)
    totals = await train(service, training)
    assert (totals.outcomes[COMPLETED], service.cancelled) == (128, [])


@pytest.mark.parametrize(
    ("balance", "taken"), [("in_flight", ["a", "b", "a", "a"]), ("paper", ["a", "b", "a", "b"])]
)
def test_the_heap_of_the_rival_counts_jobs_in_flight_or_all_so_far(
    balance: str, taken: list[str]
) -> None:
    heap = MinHeap(balance)
    heap.add("a")
    heap.add("b")
    found = [heap.take(), heap.take()]
    heap.give_back("a")
    found.append(heap.take())
    heap.give_back("a")
    found.append(heap.take())
    assert found == taken
