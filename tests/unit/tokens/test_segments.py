"""Turns become segments in which each response is trained once, behind what the model saw before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import Unreadable
from rollout.ports import Record
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import (
    NOT_SAMPLED,
    SampledTurn,
    TokenSegment,
    TokenThread,
    segments_of,
)
from rollout.tokens.turn_records import turn_of, turn_record, turns_of


def turn(context, ids, follows=None, version=1, logprobs=True) -> SampledTurn:
    values = np.linspace(-1, -0.5, len(ids), dtype=np.float32) if logprobs else None
    return SampledTurn(
        context=np.asarray(context, np.int32),
        tokens=SampledTokens(np.asarray(ids, np.int32), values),
        weights_version=version,
        backend="b1",
        follows=follows,
        message={"role": "assistant", "content": str(ids)},
    )


@st.composite
def logs(draw: st.DrawFn) -> list[SampledTurn]:
    """Draw turns of several conversations, in any order that a log can have."""
    ids = st.lists(st.integers(0, 99), min_size=1, max_size=5)
    turns: list[SampledTurn] = []
    ends: list[int | None] = []
    for number in range(draw(st.integers(1, 12))):
        follows = draw(st.sampled_from([None, *ends]))
        if follows is not None:
            ends.remove(follows)
        turns.append(turn(draw(ids), draw(ids), follows, draw(st.integers(0, 3))))
        ends.append(number)
    return turns


def test_a_conversation_is_one_segment_with_the_contexts_masked():
    segment, = segments_of([turn([1, 2], [3, 4]), turn([5], [6], 0, version=2)])  # fmt: skip

    assert segment.prompt_ids.tolist() == [1, 2]
    assert segment.response_ids.tolist() == [3, 4, 5, 6]
    assert segment.loss_mask.tolist() == [1, 1, 0, 1]
    assert segment.logprobs is not None
    assert segment.logprobs.tolist() == [-1.0, -0.5, 0.0, -1.0]
    assert segment.weights_versions.tolist() == [1, 1, NOT_SAMPLED, 2]
    assert segment.sampled == 3


def test_a_history_that_begins_again_is_a_second_segment():
    found = segments_of([turn([1], [2]), turn([7], [8]), turn([9], [10], 1)])

    assert [each.prompt_ids.tolist() for each in found] == [[1], [7]]
    assert found[1].response_ids.tolist() == [8, 9, 10]


def test_log_probabilities_are_given_for_a_whole_segment_or_not_at_all():
    found = segments_of([turn([1], [2]), turn([3], [4], 0, logprobs=False), turn([5], [6])])

    assert found[0].logprobs is None
    assert found[1].logprobs is not None


@given(logs())
def test_each_sampled_token_is_trained_once(turns):
    found = segments_of(turns)

    assert sum(each.sampled for each in found) == sum(len(each.tokens) for each in turns)
    total = sum(len(each.prompt_ids) + len(each.response_ids) for each in found)
    assert total == sum(len(each.context) + len(each.tokens) for each in turns)
    for each in found:
        assert np.all((each.loss_mask == 1) == (each.weights_versions != NOT_SAMPLED))
        assert each.logprobs is not None
        assert np.all(each.logprobs[each.loss_mask == 0] == 0)


@pytest.mark.parametrize(
    "turns",
    [[turn([1], [2], 0)], [turn([1], [2]), turn([3], [4], 0), turn([5], [6], 0)]],
    ids=["what is not there", "one that another continues"],
)
def test_a_turn_that_continues_no_end_is_refused(turns):
    with pytest.raises(ValueError, match="which is no end"):
        segments_of(turns)


def test_a_segment_refuses_arrays_of_other_lengths():
    ids, mask = np.zeros(2, np.int32), np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="other lengths"):
        TokenSegment(ids, ids, mask, None, ids)


def test_a_thread_grows_by_its_turns_and_begins_again():
    thread = TokenThread([turn([1, 2], [3]), turn([4], [5], 0)])

    assert (thread.ids.tolist(), thread.last, len(thread)) == ([1, 2, 3, 4, 5], 1, 5)
    thread.append(turn([9], [8]))
    assert (thread.ids.tolist(), thread.last) == ([9, 8], 2)
    with pytest.raises(ValueError, match="turn 3 continues turn 1"):
        thread.append(turn([1], [2], 1))


@given(logs())
def test_a_log_gives_back_its_turns(turns):
    records = [Record("call", {}), *(turn_record(each) for each in turns)]

    found = turns_of(records)

    assert [turn_record(each) for each in found] == records[1:]
    assert [each.message for each in found] == [each.message for each in turns]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: Record("turn", {}, record.arrays),
        lambda record: Record("turn", record.header, {**record.arrays, "ids": b"abc"}),
        lambda record: Record("turn", record.header, {**record.arrays, "logprobs": b"\0" * 4}),
        lambda record: Record("turn", {**record.header, "message": None}, record.arrays),
    ],
    ids=["no header", "cut ids", "too few log-probabilities", "no message"],
)
def test_a_damaged_record_is_unreadable_and_not_another_turn(change):
    with pytest.raises(Unreadable, match="record of a turn"):
        turn_of(change(turn_record(turn([1], [2, 3]))))
