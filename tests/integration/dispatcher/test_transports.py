"""Every transport leaves, byte for byte, what the reference leaves; all take their cases from one list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.dispatcher.groups import RankProcess, group, reference, torch_group
from tests.torch_workers import PYTHON

SIZES = {"replicated": 6, "halves": 2}
CASES = ["ragged", "tensor_parallel", "replicated", "large", "halves", "unchanged"]


def leaves_what_the_reference_leaves(ranks: dict[int, RankProcess], case: str) -> None:
    answers = {rank: each.answer() for rank, each in ranks.items()}
    assert {rank: answer.get("arrays", answer) for rank, answer in answers.items()} == {
        **{rank: {} for rank in answers},
        **reference(case),
    }


@pytest.mark.parametrize("options", [[], ["--strategy", "gather-scatter"], ["--checksums", "0"]])
@pytest.mark.parametrize("case", CASES)
def test_tcp_leaves_what_the_reference_leaves(case: str, options: list[str]) -> None:
    with group(SIZES.get(case, 4), case, "--times", "2", *options) as ranks:
        leaves_what_the_reference_leaves(ranks, case)


@pytest.mark.parametrize("case", CASES)
def test_torch_leaves_what_the_reference_leaves(case: str, tmp_path: Path) -> None:
    with torch_group(SIZES.get(case, 4), case, tmp_path, "--round-bytes", "999999") as ranks:
        leaves_what_the_reference_leaves(ranks, case)


def test_ranks_under_another_python_and_numpy_exchange_with_each_other() -> None:
    """The digests of layouts and plans are those of values, not of a version of numpy."""
    with group(4, "ragged", python_of={1: PYTHON}) as ranks:
        leaves_what_the_reference_leaves(ranks, "ragged")
