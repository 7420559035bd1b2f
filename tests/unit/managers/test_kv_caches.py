"""Caches of keys and values by trajectory: what a prompt can use of them, and which are dropped."""

from __future__ import annotations

from typing import Any

import pytest

from managers.gpu.torch_worker.kv_caches import KvCache, KvCaches, common_length


class Row:
    """A tensor that remembers how it was cut."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __getitem__(self, cut: Any) -> Row:
        return Row(min(self.tokens, cut[2].stop))


def cache(*ids: int, nbytes: int = 10) -> KvCache:
    return KvCache(list(ids), [(Row(len(ids)), Row(len(ids)))], nbytes)


def test_a_longer_prompt_uses_the_whole_cache() -> None:
    caches = KvCaches(100)
    caches.keep("t", cache(1, 2, 3))
    found, count = caches.reusable("t", [1, 2, 3, 4, 5])
    assert found is not None
    assert count == 3
    assert [key.tokens for key, _ in found.first(count)] == [3]


@pytest.mark.parametrize(
    ("prompt", "count"), [([1, 2, 9, 9], 2), ([1, 2, 3], 2), ([1, 2], 1), ([9, 2, 3], 0), ([1], 0)]
)
def test_a_prompt_uses_what_it_begins_with_and_computes_its_last_token(prompt, count) -> None:
    caches = KvCaches(100)
    caches.keep("t", cache(1, 2, 3))
    assert caches.reusable("t", prompt)[1] == count


def test_another_trajectory_with_the_same_tokens_has_nothing() -> None:
    caches = KvCaches(100)
    caches.keep("a", cache(1, 2, 3))
    assert caches.reusable("b", [1, 2, 3, 4]) == (None, 0)


def test_the_cache_unused_for_longest_is_dropped_when_the_limit_is_passed() -> None:
    caches = KvCaches(30)
    for name in "abc":
        caches.keep(name, cache(1, 2))
    caches.reusable("a", [1, 2, 3])
    caches.keep("d", cache(1, 2))
    assert [each["trajectory"] for each in caches.listed()] == ["c", "a", "d"]
    assert caches.nbytes == 30


def test_looking_at_a_cache_is_no_use_of_it() -> None:
    caches = KvCaches(20)
    caches.keep("a", cache(1))
    caches.keep("b", cache(1))
    assert caches.get("a") is not None
    caches.keep("c", cache(1))
    assert caches.get("a") is None


def test_a_cache_above_the_limit_is_not_kept_and_its_former_one_is_void() -> None:
    """The former one would be that of an earlier state of the conversation, which no request sends again."""
    caches = KvCaches(30)
    caches.keep("t", cache(1))
    caches.keep("u", cache(1))
    assert not caches.keep("t", cache(1, 2, nbytes=31))
    assert [each["trajectory"] for each in caches.listed()] == ["u"]
    assert caches.nbytes == 10


def test_a_request_without_a_trajectory_keeps_nothing() -> None:
    caches = KvCaches(30)
    assert not caches.keep("", cache(1))
    assert caches.listed() == []


def test_a_cache_that_was_replaced_is_not_dropped_for_the_former_one() -> None:
    caches = KvCaches(30)
    former = cache(1)
    caches.keep("t", former)
    caches.keep("t", cache(1, 2))
    assert not caches.drop("t", former)
    assert caches.drop("t")
    assert not caches.drop("t")
    assert caches.nbytes == 0


def test_clearing_leaves_no_bytes() -> None:
    caches = KvCaches(30)
    caches.keep("t", cache(1))
    caches.clear()
    assert (caches.listed(), caches.nbytes) == ([], 0)


def test_common_lengths() -> None:
    assert common_length([1, 2, 3], [1, 2, 3, 4]) == 3
    assert common_length([1, 5, 3], [1, 2, 3, 4]) == 1
    assert common_length([], [1]) == 0
