"""What an engine answers is checked before anything trains on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout.tokens.sampled import InvalidTokens, checked_tokens


def checked(ids, logprobs, most=8, **options):
    return checked_tokens(ids, logprobs, vocabulary_size=100, most=most, **options)


@pytest.mark.parametrize(
    ("ids", "logprobs", "said"),
    [
        ([], [], "0 tokens"),
        ([1] * 9, [-1.0] * 9, "9 tokens"),
        ([1, 100], [-1.0, -1.0], "token 1 has the id 100"),
        ([-1], [-1.0], "token 0 has the id -1"),
        ([1.5], [-1.0], "not integers"),
        ([2**70], [-1.0], "not integers"),
        ([True, False], [-1.0, -1.0], "not integers"),
        ([1, 2], [-1.0], "1 log-probabilities for 2 tokens"),
        ([1], [math.nan], "token 0 has the log-probability nan"),
        ([1, 2], [-1.0, None], "token 1 has the log-probability None"),
        ([1], [-math.inf], "log-probability -inf"),
        ([1], [0.5], "log-probability 0.5"),
        ([1], [{}], "not numbers"),
        ([1], None, "no log-probabilities"),
    ],
)
def test_what_no_model_can_have_sampled_is_refused(ids, logprobs, said):
    with pytest.raises(InvalidTokens, match=said):
        checked(ids, logprobs)


def test_tokens_are_arrays_of_the_width_that_is_stored():
    found = checked([1, 99], [-0.5, 0.001], finish="length")

    assert (found.ids.dtype, found.logprobs.dtype) == (np.int32, np.float32)
    assert found.ids.tolist() == [1, 99]
    assert found.logprobs.tolist() == [-0.5, 0.0]
    assert (len(found), found.finish) == (2, "length")


def test_an_engine_may_give_no_log_probabilities_where_none_are_needed():
    assert checked([1], None, need_logprobs=False).logprobs is None
