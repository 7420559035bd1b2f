"""Profiling: which cell is next, what is evidence of a lack of memory, and what a killed profile measures again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SelectorStage,
    with_change,
)
from managers.gpu.profiling import (
    CallAnswer,
    CellKey,
    CellReport,
    ProfilePlan,
    Profiler,
    lacks_memory,
    next_cell,
    order,
    shares,
)

TP1, TP2 = Parallelism(1, dp=2), Parallelism(2)
IDENTITY = ProfileIdentity("two processes", "small", "process")
PLAN = ProfilePlan((TP1, TP2), (128, 256, 512), (4, 8), cell_seconds=100.0)


class Kept:
    """Cells in memory; ends the profile after so many of them, as kill -9 does."""

    def __init__(self, kills_after: int = 1000) -> None:
        self.profile: ParallelismProfile | None = None
        self.puts = 0
        self.kills_after = kills_after

    async def known(self) -> ParallelismProfile | None:
        return self.profile

    async def put(self, change: ParallelismProfile) -> None:
        self.profile = with_change(self.profile, change)
        self.puts += 1
        if self.puts == self.kills_after:
            raise KeyboardInterrupt

    def cell(self, degree: Parallelism, context: int, responses: int) -> ProfileCell:
        assert self.profile is not None
        (found,) = [
            each
            for each in self.profile.cells
            if (each.parallelism, each.context, each.responses) == (degree, context, responses)
        ]
        return found


class Engine:
    """Answers as a service whose GPUs have room for so many tokens each."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.calls: list[tuple[int, int, int]] = []
        self.resident = 0
        self.failures: list[CallAnswer] = []

    async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
        restored, self.resident = gpus != self.resident, gpus
        context, rows = len(body["prompt"]) + body["max_tokens"], body["n"]
        self.calls.append((gpus, context, rows))
        if self.failures:
            return self.failures.pop()
        if context * rows > self.room * gpus:
            said = {"error": "out_of_memory", "evidence": "rank 0 ended with status 77"}
            return CallAnswer(507, said, chunk="0")
        took = {"decode_seconds": context * rows / gpus / 1000, "peak_memory_bytes": context}
        return CallAnswer(
            200, {"tangram": took}, 1.0, 2.5 if restored else None, str(len(self.calls) % 2)
        )


def profile(engine: Engine, kept: Kept, plan: ProfilePlan = PLAN) -> list[CellReport]:
    reports: list[CellReport] = []
    clock = iter(range(10**6))
    profiler = Profiler(plan, IDENTITY, engine, kept, asyncio.gather, lambda: float(next(clock)))
    asyncio.run(profiler.run(reports.append))
    return reports


def test_cells_are_measured_by_degree_and_from_the_least_to_the_most_tokens() -> None:
    keys = list(order(PLAN))
    assert [key.parallelism for key in keys] == [TP1] * 6 + [TP2] * 6
    tokens = [key.context * key.responses for key in keys[:6]]
    assert tokens == sorted(tokens)


def test_a_degree_with_more_copies_than_responses_has_no_cell() -> None:
    plan = ProfilePlan((Parallelism(1, dp=8), TP2), (128,), (4, 8))
    assert [(key.parallelism.dp, key.responses) for key in order(plan)] == [(8, 8), (1, 4), (1, 8)]


def test_each_copy_gets_its_share_of_the_responses_at_once() -> None:
    assert shares(7, 2) == [4, 3]
    engine = Engine()
    profile(engine, Kept(), ProfilePlan((TP1,), (128,), (7,), switches=0))
    assert engine.calls[-2:] == [(1, 128, 4), (1, 128, 3)]


def test_calls_are_made_until_each_copy_has_a_chunk_of_its_own() -> None:
    class Reluctant(Engine):
        async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
            answer = await super().call(gpus, body, seconds)
            # A second chunk is worth a restore after so many calls.
            return answer._replace(chunk="b" if len(self.calls) > 6 else "a")

    engine = Reluctant()
    profile(engine, Kept(), ProfilePlan((TP1,), (128,), (8,), rounds=1, switches=0))
    assert engine.calls.count((1, 128, 1)) == 2 + 8


def test_the_rate_is_the_median_of_the_rounds_by_the_seconds_that_the_engine_tells() -> None:
    kept = Kept()
    profile(Engine(), kept, ProfilePlan((TP2,), (500,), (4,), switches=0))
    # 4 rows decode 15 tokens after their first one in one second, on two GPUs.
    cell = kept.cell(TP2, 500, 4)
    assert cell.tokens_per_gpu_second == pytest.approx(4 * 15 / 1.0 / 2)
    assert (cell.low, cell.high, cell.peak_memory_bytes) == (30.0, 30.0, 500)


def test_out_of_memory_spares_the_larger_cells_of_that_degree_alone() -> None:
    engine, kept = Engine(room=600), Kept()
    reports = profile(engine, kept)
    found = {report.key: report for report in reports}
    # Four responses on two copies: two rows of 512 tokens on one GPU.
    measured = found[CellKey(TP1, 512, 4)]
    assert measured.cell is not None
    assert measured.cell.oom
    assert "status 77" in measured.why
    larger = found[CellKey(TP1, 512, 8)]
    assert larger.implied
    assert larger.cell is not None
    assert larger.cell.oom
    assert (1, 512, 4) not in engine.calls, "eight responses on two copies were never asked for"
    assert not kept.cell(TP2, 256, 4).oom


def test_a_killed_profile_continues_with_the_cell_that_it_was_at() -> None:
    kept = Kept(kills_after=3)
    engine = Engine()
    with pytest.raises(KeyboardInterrupt):
        profile(engine, kept)
    assert kept.profile is not None
    done = [(cell.parallelism, cell.context, cell.responses) for cell in kept.profile.cells]
    again = Engine()
    rest = profile(again, kept)
    assert len(rest) == len(list(order(PLAN))) - 3
    assert not {tuple(report.key) for report in rest} & set(done)
    assert (1, rest[0].key.context, rest[0].key.responses // 2) in again.calls


@pytest.mark.parametrize(
    ("answer", "evident"),
    [
        (CallAnswer(507, {"error": "out_of_memory", "detail": "rank 1: status 77"}), True),
        (CallAnswer(500, {"detail": "CUDA out of memory. Tried to allocate 2 GiB"}), True),
        (CallAnswer(0, detail="service s: it ended; its last words: out of memory"), True),
        (CallAnswer(500, {"detail": "rank 0 ended with status -9"}), False),
        (CallAnswer(0, detail="the answer broke off"), False),
        (CallAnswer(400, {"detail": "out of memory is not a member"}), False),
        (CallAnswer(200, {"choices": [{"text": "out of memory"}]}), False),
    ],
)
def test_only_evidence_makes_a_failure_a_lack_of_memory(answer: CallAnswer, evident: bool) -> None:
    assert bool(lacks_memory(answer)) is evident


def test_a_server_that_is_killed_once_is_asked_again_and_its_cell_measured() -> None:
    engine, kept = Engine(), Kept()
    engine.failures = [CallAnswer(0, detail="the answer broke off")]
    profile(engine, kept, ProfilePlan((TP2,), (128,), (4,), switches=0))
    assert kept.cell(TP2, 128, 4).tokens_per_gpu_second


def test_a_cell_that_always_fails_without_evidence_is_left_open_and_not_stored() -> None:
    engine, kept = Engine(), Kept()
    engine.failures = [CallAnswer(500, {"detail": "died"})] * 3
    (report,) = profile(engine, kept, ProfilePlan((TP2,), (128,), (4,), switches=0))
    assert report.cell is None
    assert "died" in report.why
    assert kept.profile is None


def test_a_cell_ends_when_its_time_is_over_with_what_it_has() -> None:
    engine, kept = Engine(), Kept()
    profile(engine, kept, ProfilePlan((TP2,), (128,), (4,), cell_seconds=1.0, switches=0))
    assert len(engine.calls) == 1
    assert kept.cell(TP2, 128, 4).low is None


def test_an_engine_that_tells_no_times_is_measured_by_the_difference_to_one_token() -> None:
    class Plain(Engine):
        async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
            await super().call(gpus, body, seconds)
            return CallAnswer(200, {}, 1.0 + body["max_tokens"] * 0.1)

    kept = Kept()
    profile(Plain(), kept, ProfilePlan((TP2,), (128,), (4,), switches=0))
    assert kept.cell(TP2, 128, 4).tokens_per_gpu_second == pytest.approx(4 * 15 / 1.5 / 2)


def test_changes_of_the_degree_cost_what_the_restores_on_the_way_took() -> None:
    kept = Kept()
    profile(Engine(), kept)
    assert kept.profile is not None
    costs = {(cost.origin, cost.to): cost.seconds for cost in kept.profile.switches}
    assert costs == {(TP1, TP2): 2.5, (TP2, TP1): 2.5}


def test_cells_of_another_stage_are_not_those_of_this_one() -> None:
    cell = ProfileCell(TP2, 128, 4, SelectorStage.TRAINING, tokens_per_gpu_second=1.0)
    plan = ProfilePlan((TP2,), (128,), (4,))
    assert next_cell(plan, [cell]) == CellKey(TP2, 128, 4)
