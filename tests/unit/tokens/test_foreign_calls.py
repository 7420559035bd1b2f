"""Calls of foreign agents keep the sampled tokens, although the agents return them as text."""

from __future__ import annotations

import numpy as np

from rollout.tokens.foreign_calls import CallRecorder, RecordedCall, merged_calls
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import segments_of
from rollout.tokens.turn_records import turn_of, turn_record
from tests.chat_models import encoder, tokenizer

ASKED = [{"role": "user", "content": "Count the files."}]


def tokens(text: str) -> SampledTokens:
    """Return the ids of a text letter by letter, as no encoder gives them, and the end of the turn."""
    ids = [each for letter in text for each in tokenizer().encode(letter)]
    ids += tokenizer().encode("<|im_end|>")
    return SampledTokens(np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32))


def said(recorder: CallRecorder, messages, text: str, version: int = 1, tools=None):
    """Make one call; return its plan and the message that the agent sends back."""
    planned = recorder.plan(messages, tools)
    message = {"role": "assistant", "content": text}
    recorder.add(recorder.turn_of(planned, tokens(text), message, weights_version=version))
    return planned, message


def test_a_conversation_in_text_keeps_the_sampled_ids():
    recorder = CallRecorder(encoder())
    first, answer = said(recorder, ASKED, "I count them.")
    more = [*ASKED, answer, {"role": "user", "content": "Well?"}]

    second, _ = said(recorder, more, "There are 3.", version=2)

    ids = tokens("I count them.").ids.tolist()
    start = len(first.prompt_ids)
    assert second.prompt_ids[: start + len(ids)] == [*first.prompt_ids, *ids]
    (segment,) = recorder.segments()
    assert segment.sampled == len(ids) + len(tokens("There are 3."))
    assert set(segment.weights_versions.tolist()) == {1, -1, 2}


def test_what_clients_change_of_an_answer_does_not_matter():
    recorder = CallRecorder(encoder())
    call = {"id": "call_1_0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    planned = recorder.plan(ASKED)
    answer = {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"}
    recorder.add(recorder.turn_of(planned, tokens("x"), answer, weights_version=1))
    function = {"name": "ls", "arguments": "{ }"}
    returned = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"function": function, "id": "call_1_0", "index": 0, "type": "function"}],
    }
    result = {
        "role": "tool",
        "tool_call_id": "call_1_0",
        "content": [{"type": "text", "text": "a"}],
    }

    assert recorder.plan([*ASKED, returned, result]).continues == 0


def test_another_answer_or_other_tools_continue_nothing():
    recorder = CallRecorder(encoder())
    _, answer = said(recorder, ASKED, "I count them.")
    changed = {**answer, "content": "I count then."}
    tools = [{"type": "function", "function": {"name": "ls"}}]

    assert recorder.plan([*ASKED, changed, *ASKED]).continues is None
    assert recorder.plan([*ASKED, answer, *ASKED], tools).continues is None
    assert recorder.plan([*ASKED, answer, *ASKED]).continues == 0


def test_branches_of_one_call_are_segments_that_train_their_own_answers():
    recorder = CallRecorder(encoder())
    _, answer = said(recorder, ASKED, "I count them.")
    branches = [[*ASKED, answer, {"role": "user", "content": each}] for each in ("How?", "Now.")]
    plans = [said(recorder, branch, "Yes.")[0] for branch in branches]

    segments = recorder.segments()

    assert len(segments) == 2
    assert sum(each.sampled for each in segments) == len(tokens("I count them.")) + 2 * len(
        tokens("Yes.")
    )
    assert segments[1].prompt_ids.tolist() == plans[1].prompt_ids


def test_calls_of_two_agents_at_once_are_two_segments():
    recorder = CallRecorder(encoder())
    other = [{"role": "user", "content": "Write a poem."}]
    _, first = said(recorder, ASKED, "I count.")
    _, second = said(recorder, other, "Roses.")
    said(recorder, [*ASKED, first, *ASKED], "3.")
    said(recorder, [*other, second, *other], "Violets.")

    lengths = [each.sampled for each in recorder.segments()]

    assert lengths == [
        len(tokens("I count.")) + len(tokens("3.")),
        len(tokens("Roses.")) + len(tokens("Violets.")),
    ]


def test_another_worker_continues_from_the_log():
    recorder = CallRecorder(encoder())
    _, answer = said(recorder, ASKED, "I count them.")
    more = [*ASKED, answer, {"role": "user", "content": "Well?"}]

    successor = CallRecorder(encoder(), recorder.turns)

    assert successor.plan(more).prompt_ids == recorder.plan(more).prompt_ids
    said(successor, more, "3.")
    said(recorder, more, "3.")
    assert [turn_record(each) for each in successor.turns] == [
        turn_record(each) for each in recorder.turns
    ]


def recorded(prompt, ids, version=1) -> RecordedCall:
    values = np.zeros(len(ids), np.float32)
    response = SampledTokens(np.array(ids, np.int32), values)
    return RecordedCall(np.array(prompt, np.int32), response, version)


def test_calls_merge_where_a_prompt_begins_with_a_whole_former_call():
    turns = merged_calls(
        [recorded([1], [2, 3]), recorded([9], [9]), recorded([1, 2, 3, 4], [5]), recorded([1], [7])]
    )

    found = segments_of(turns)

    assert [each.prompt_ids.tolist() for each in found] == [[9], [1], [1]]
    assert found[1].response_ids.tolist() == [2, 3, 4, 5]
    assert found[1].loss_mask.tolist() == [1, 1, 0, 1]


def test_a_prompt_with_other_ids_for_the_same_text_begins_a_segment():
    turns = merged_calls([recorded([1], [2, 3]), recorded([1, 23, 4], [5])])

    assert [each.follows for each in turns] == [None, None]


def test_a_turn_has_the_messages_that_its_context_encodes_and_the_tools_of_its_prompt():
    recorder = CallRecorder(encoder())
    tools = [{"type": "function", "function": {"name": "ls"}}]
    _, answer = said(recorder, ASKED, "I count them.", tools=tools)
    more = [*ASKED, answer, {"role": "user", "content": "Well?"}]
    said(recorder, more, "There are 3.", tools=tools)
    said(recorder, more, "There are 4.", tools=tools)  # a branch, which has a prompt of its own

    first, second, branch = recorder.turns
    assert (list(first.asked), list(first.tools)) == (ASKED, tools)
    assert (list(second.asked), list(second.tools)) == ([more[-1]], [])
    assert (list(branch.asked), list(branch.tools)) == (more, tools)


def test_a_request_that_is_repeated_has_the_turn_that_answered_it():
    recorder = CallRecorder(encoder())
    planned = recorder.plan(ASKED)
    answer = {"role": "assistant", "content": "3."}
    recorder.add(recorder.turn_of(planned, tokens("3."), answer, weights_version=1, request="r1"))

    successor = CallRecorder(encoder(), recorder.turns)

    for each in (recorder, successor):
        assert each.answer_to("r1") == 0
        assert each.answer_to("r2") is None
        assert each.latest_answer(each.plan(ASKED)) == 0
        assert each.latest_answer(each.plan([*ASKED, answer, *ASKED])) is None
        assert each.prompt_tokens(0) == len(planned.prompt_ids)
    said(recorder, [*ASKED, answer, *ASKED], "Yes.")
    assert recorder.latest_answer(recorder.plan(ASKED)) is None  # the agent has it


def test_a_turn_keeps_the_name_of_its_request_in_the_log():
    recorder = CallRecorder(encoder())
    answer = {"role": "assistant", "content": "3."}
    turn = recorder.turn_of(
        recorder.plan(ASKED), tokens("3."), answer, weights_version=1, request="r1"
    )

    assert turn_of(turn_record(turn)).request == "r1"
    assert "request" not in turn_record(recorded_without_name()).header["extra"]


def recorded_without_name():
    recorder = CallRecorder(encoder())
    said(recorder, ASKED, "3.")
    return recorder.turns[0]
