"""Options of sampling as published clients send them."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from rollout.llm.sampling_options import (
    DEFAULT_TOKENS,
    ContextOverflow,
    SamplingOptions,
    sampling_options,
)

#: As the environment of NeMo RL sends it.
NEMO = {
    "model": "hosted_vllm/Qwen/Qwen3-8B",
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": None,
    "max_iterations": 30,
    "max_model_len": 32768,
    "max_output_tokens": 2048,
    "custom_tokenizer": "models/policy",
    "token_level_generation": True,
    "ensure_thinking_end_properly": True,
    "repetition_penalty": 1.05,
    "seed": 7,
}


def test_options_of_a_published_client_are_taken_and_the_rest_is_named():
    options = sampling_options(NEMO)

    assert (options.model, options.temperature, options.top_k) == ("Qwen/Qwen3-8B", 0.7, -1)
    assert (options.max_tokens, options.max_context_tokens) == (2048, 32768)
    assert options.engine == {"repetition_penalty": 1.05}
    assert options.unused == (
        "custom_tokenizer",
        "ensure_thinking_end_properly",
        "max_iterations",
        "token_level_generation",
    )


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature is at least 0"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens is at least 1"),
        ({"max_model_len": 1}, "max_context_tokens"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_an_invalid_option_is_refused_by_name(stated, named):
    with pytest.raises(InvalidRequest, match=named) as refused:
        sampling_options(stated)
    assert refused.value.pointer.startswith("/sampling")


def test_one_stop_text_is_a_list_of_one():
    assert sampling_options({"stop": "</answer>"}).stop == ("</answer>",)


@pytest.mark.parametrize(
    ("options", "prompt", "backend", "room"),
    [
        ({}, 10, None, DEFAULT_TOKENS),
        ({"max_tokens": 100}, 10, None, 100),
        ({"max_context_tokens": 64}, 10, None, 54),
        ({"max_context_tokens": 64, "max_tokens": 20}, 10, None, 20),
        ({"max_context_tokens": 64}, 10, 32, 22),
        ({}, 10, 32, 22),
        ({"max_context_tokens": 64}, 63, None, 1),
    ],
)
def test_a_response_has_what_the_context_leaves(options, prompt, backend, room):
    assert SamplingOptions(**options).room(prompt, backend) == room


def test_a_full_context_is_no_error_of_the_backend():
    with pytest.raises(ContextOverflow, match="64 tokens of a context of 64"):
        SamplingOptions(max_context_tokens=64).room(64)
