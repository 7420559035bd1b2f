"""Faults of a process group of torch (gloo): the heartbeat beside it names the rank on each other one within five seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.dispatcher.groups import torch_group

FOUND_SECONDS = 5.0


@pytest.mark.parametrize(
    ("fault", "victim"), [("kill", 2), pytest.param("stop", 0, marks=pytest.mark.long)]
)
def test_a_rank_that_dies_or_stops_in_a_call_is_named_on_each_rank(
    fault: str, victim: int, tmp_path: Path
) -> None:
    with torch_group(4, "large", tmp_path, of_rank={victim: ["--fault", fault]}) as ranks:
        os.waitid(os.P_PID, ranks[victim].process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        began = time.time()
        answers = {rank: each.answer() for rank, each in ranks.items() if rank != victim}
    described = [
        (each["error"]["type"], each["error"]["members"]["rank"]) for each in answers.values()
    ]
    assert described == [("RankLost", victim)] * 3
    assert max(each["at"] for each in answers.values()) - began < FOUND_SECONDS


def test_layouts_that_differ_are_named_before_the_call(tmp_path: Path) -> None:
    of_rank = {1: ["--case", "other_dtype"]}
    with torch_group(2, "halves", tmp_path, of_rank=of_rank) as ranks:
        errors = [each.answer()["error"] for each in ranks.values()]
    assert [(each["type"], each["members"]["rank"]) for each in errors] == [("Mismatch", 1)] * 2
