"""What each engine is asked, and what is refused of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rollout.llm.dialects import DIALECTS, AskedFor, MalformedAnswer
from rollout.llm.sampling_options import SamplingOptions
from rollout.tokens.sampled import SampledTokens

PROMPT = list(range(10, 20))
ASKED = AskedFor(PROMPT, most=4, vocabulary_size=100)
OPTIONS = SamplingOptions(temperature=0.5, top_k=20, seed=3, stop=("</answer>",))


def vllm(**choice: Any) -> dict[str, Any]:
    names = {"tokens": ["token_id:1", "token_id:2"], "token_logprobs": [-0.5, -0.25]}
    whole = {"token_ids": [1, 2], "prompt_token_ids": PROMPT, "logprobs": names}
    return {"choices": [{**whole, "finish_reason": "stop", **choice}]}


def sglang(**members: Any) -> dict[str, Any]:
    listed = [[-0.5, 1, None], [-0.25, 2, "b"]]
    meta = {"prompt_tokens": 10, "finish_reason": {"type": "stop", "matched": 2}}
    return {"output_ids": [1, 2], "meta_info": {**meta, "output_token_logprobs": listed, **members}}


def prorl(**members: Any) -> dict[str, Any]:
    return {"response_ids": [1, 2], "logprobs": [-0.5, -0.25], **members}


def read(dialect: str, answer: dict[str, Any] | bytes, asked: AskedFor = ASKED) -> SampledTokens:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return DIALECTS[dialect].read(data, asked)


def values(found: SampledTokens) -> list[float]:
    assert found.logprobs is not None
    return found.logprobs.tolist()


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "vllm": vllm,
    "openai": vllm,
    "sglang": sglang,
    "prorl": prorl,
}


@pytest.mark.parametrize("dialect", ANSWERS)
def test_an_answer_gives_the_sampled_tokens(dialect):
    found = read(dialect, ANSWERS[dialect]())

    assert found.ids.tolist() == [1, 2]
    assert values(found) == [-0.5, -0.25]
    assert found.finish == "stop"


def test_prorl_is_asked_as_its_trainer_expects():
    path, body = DIALECTS["prorl"].request(PROMPT, OPTIONS, 4, "policy")

    assert path == "/generate"
    assert body == {
        "prompt_ids": PROMPT,
        "max_tokens": 4,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 20,
        "seed": 3,
        "stop": ["</answer>"],
    }


def test_sglang_is_asked_for_log_probabilities_and_all_special_tokens():
    path, body = DIALECTS["sglang"].request(PROMPT, OPTIONS, 4, "policy")

    assert (path, body["input_ids"], body["return_logprob"]) == ("/generate", PROMPT, True)
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["sampling_seed"]) == (4, 3)
    assert (sampling["skip_special_tokens"], sampling["no_stop_trim"]) == (False, True)
    assert not {"max_tokens", "seed"} & sampling.keys()


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_completions_are_asked_with_ids_for_ids(dialect):
    path, body = DIALECTS[dialect].request(PROMPT, OPTIONS, 4, "policy")

    assert (path, body["prompt"], body["max_tokens"]) == ("/v1/completions", PROMPT, 4)
    assert (body["model"], body["return_token_ids"]) == ("policy", True)
    assert body["logprobs"] in (0, 1)
    without = DIALECTS[dialect].request(PROMPT, SamplingOptions(need_logprobs=False), 4, "")
    assert not {"logprobs", "model", "seed"} & without.body.keys()


def test_names_of_ids_are_read_where_an_earlier_vllm_has_no_others():
    assert read("vllm", vllm(token_ids=None)).ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dialect", "answer", "said"),
    [
        ("vllm", vllm(token_ids=None, logprobs={"tokens": ["It", " is"]}), "text alone"),
        ("vllm", vllm(token_ids=None, logprobs=None), "text alone"),
        ("vllm", vllm(prompt_token_ids=PROMPT[1:]), "changed the prompt"),
        ("vllm", vllm(logprobs=None), "no log-probabilities"),
        ("vllm", vllm(logprobs={"token_logprobs": [-0.5]}), "1 log-probabilities for 2"),
        ("vllm", vllm(token_ids=[1, 100]), "the vocabulary has 100"),
        ("vllm", vllm(token_ids=["1"]), "another form"),
        ("vllm", vllm(token_ids=[]), "0 tokens"),
        ("vllm", {"choices": []}, "0 choices"),
        ("vllm", {"object": "error"}, "another form"),
        ("sglang", sglang(prompt_tokens=9), "a prompt of 9 tokens"),
        ("sglang", sglang(finish_reason={"type": "abort", "message": "stopped"}), "stopped"),
        ("sglang", sglang(output_token_logprobs=[[-0.5, 7, None]]), "different tokens"),
        ("sglang", sglang(output_token_logprobs=None), "no log-probabilities"),
        ("sglang", {"meta_info": {}}, "neither"),
        ("prorl", prorl(response_ids=[1, 2, 3, 4, 5]), "5 tokens, where 1 to 4"),
        ("prorl", prorl(logprobs=[0.0, 3.0]), "log-probability 3.0"),
        ("prorl", b'{"response_ids": [1, 2], "logprobs": [NaN, -0.5]}', "NaN"),
        ("prorl", b'{"response_ids": [1, 2', "another form"),
        ("prorl", b"<html>", "another form"),
        ("prorl", b'"\xff\xfe"', "another form"),
    ],
)
def test_a_lying_answer_is_refused_with_the_reason(dialect, answer, said):
    with pytest.raises(MalformedAnswer, match=said):
        read(dialect, answer)


def test_a_repeated_prompt_is_no_part_of_the_response():
    """The published server and one of its clients disagree about it, so an engine may do either."""
    echoed = {"response_ids": [*PROMPT, 1, 2], "logprobs": [*[-1.0] * 10, -0.5, -0.25]}
    responses = {"response_ids": [*PROMPT, 1, 2], "logprobs": [-0.5, -0.25]}

    assert read("prorl", echoed).ids.tolist() == [1, 2]
    assert values(read("prorl", echoed)) == [-0.5, -0.25]
    assert values(read("prorl", responses)) == [-0.5, -0.25]


def test_log_probabilities_may_be_absent_where_none_are_needed():
    asked = ASKED._replace(need_logprobs=False)

    assert read("openai", vllm(logprobs=None), asked).logprobs is None
    assert read("prorl", {"response_ids": [1]}, asked).logprobs is None
