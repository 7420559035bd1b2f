"""Turns of a rollout as documents: what the model was asked and answered, with the tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from contract.rollout_views import RolloutTurns
from rollout.ports import Record
from rollout.tokens.turn_records import turn_record
from scheduler.runtime.rollouts.result_documents import turns_document
from tests.integration.runtime.prorl_rig import CONTEXTS, LOGPROBS, RESPONSES, sampled_turns

LOG = [Record("request", {}), *map(turn_record, sampled_turns())]


def test_turns_have_messages_tokens_and_tools():
    found = msgspec.convert(turns_document("r", LOG, packed=False), RolloutTurns)
    assert [turn.context_ids for turn in found.turns] == list(CONTEXTS)
    assert [turn.response_ids for turn in found.turns] == list(RESPONSES)
    assert [turn.logprobs for turn in found.turns] == list(LOGPROBS)
    assert [turn.follows for turn in found.turns] == [None, 0]
    assert [len(turn.tools) for turn in found.turns] == [1, 0]
    assert [each["content"] for turn in found.turns for each in turn.asked] == [
        "Help.",
        "Fix it.",
        "setup.py",
    ]


def test_a_backend_has_the_name_that_its_reader_may_know():
    log = [turn_record(turn) for turn in sampled_turns()]
    for record, backend in zip(log, ("10.0.0.9:8000", "10.0.0.8:8000"), strict=True):
        record.header["backend"] = backend

    def shown(names):
        return [
            turn["backend"] for turn in turns_document("r", log, names=names, packed=False)["turns"]
        ]

    assert shown(None) == ["10.0.0.9:8000", "10.0.0.8:8000"]
    assert shown({"10.0.0.9:8000": "3"}) == ["3", ""]


def test_packed_arrays_are_bytes():
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(turns_document("r", LOG, packed=True)))
    turn = packed["turns"][1]
    assert np.frombuffer(turn["response_ids"], "<i4").tolist() == RESPONSES[1]
    assert np.frombuffer(turn["logprobs"], "<f4").tolist() == LOGPROBS[1]


def test_the_value_of_run_and_the_stage_of_an_error_are_of_the_last_generation():
    lost = [*LOG, Record("stage", {"value": {"end": "stuck"}}), Record("lost", {"reason": "node"})]
    assert turns_document("r", lost, packed=False) == {
        "id": "r", "turns": [], "value": {}, "failed_stage": "",
    }  # fmt: skip
    again = [*lost, *LOG[1:], Record("stage", {"value": {"end": "finished"}})]
    ended = [*again, Record("result", {"error": {"stage": "eval", "type": "ValueError"}})]
    found = turns_document("r", ended, packed=False)
    assert (len(found["turns"]), found["value"], found["failed_stage"]) == (
        2,
        {"end": "finished"},
        "eval",
    )


def test_a_log_of_an_earlier_version_has_no_messages_before_a_response():
    turn = turn_record(sampled_turns()[0])
    del turn.header["asked"], turn.header["tools"]
    [found] = turns_document("r", [turn], packed=False)["turns"]
    assert (found["asked"], found["tools"], found["response_ids"]) == ([], [], RESPONSES[0])
