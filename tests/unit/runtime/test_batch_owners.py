"""Owners of rows: balanced by tokens, as a function of lengths alone, and each refusal names its member."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from scheduler.runtime.batches.owners import asked_owners, owned_rollouts
from scheduler.runtime.batches.row_tokens import RowTokens

LENGTHS = st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 10_000), max_size=40)


@given(LENGTHS, st.integers(1, 8))
def test_each_rollout_has_one_owner_and_the_busiest_is_near_the_mean(
    tokens: dict[str, int], ranks: int
) -> None:
    owned = owned_rollouts(asked_owners({"ranks": ranks}), list(tokens), tokens)
    assert sorted(rollout for theirs in owned.values() for rollout in theirs) == sorted(tokens)
    loads = [sum(tokens[rollout] for rollout in theirs) for theirs in owned.values()]
    bound = sum(tokens.values()) / ranks + max(tokens.values(), default=0)
    assert max(loads) <= bound
    again = dict(reversed(tokens.items()))
    assert owned_rollouts(asked_owners({"ranks": ranks}), list(again), again) == owned


def test_ranks_of_one_dp_coordinate_own_the_same() -> None:
    asked = asked_owners({"mesh": {"dp": 2, "cp": 2, "ranks": [7, 5, 3, 1]}, "owners": {"a": 1}})
    assert owned_rollouts(asked, ["a"], {"a": 5}) == {7: set(), 5: set(), 3: {"a"}, 1: {"a"}}


@pytest.mark.parametrize(
    ("layout", "pointer"),
    [
        ({"ranks": 2, "mesh": {}}, "/layout"),
        ({"ranks": 2, "owners": {"a": 2}}, "/layout/owners/a"),
        ({"mesh": {"dp": 4096, "tp": 2}}, "/layout/mesh/ranks"),
        ({"mesh": {"tp": 2}, "tensors": [{"name": "x"}]}, "/layout"),
    ],
)
def test_a_mistake_is_refused_at_its_member(layout: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked_owners(layout)
    assert caught.value.pointer == pointer


def test_owners_name_each_rollout() -> None:
    with pytest.raises(InvalidRequest, match="no rank for b"):
        owned_rollouts(asked_owners({"ranks": 1, "owners": {"a": 0}}), ["a", "b"], {"a": 1, "b": 1})


@given(st.text(), st.integers(0, 9))
def test_no_other_text_is_a_token(text: str, rank: int) -> None:
    tokens = RowTokens(b"secret")
    token = tokens.token("bat_1", "p", rank, 5.0)
    assert tokens.read(token) == ("bat_1", "p", rank, 5.0)
    for other in (text, token + text, token[:-1], f"tgb_{text}", f"tgb_{text}.{token[-40:]}"):
        assert other == token or tokens.read(other) is None
    assert RowTokens(b"other").read(token) is None
