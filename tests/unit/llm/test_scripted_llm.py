"""The scripted server of the examples answers by its script, in the protocols that it claims."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from examples.rollouts.scripted_llm import Served, logprob_of, read_script
from tests.chat_models import tokenizer
from tests.scripted_backends import scripted_model

ASKED = {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}


async def asked(
    served: Served, path: str, body: dict[str, Any] | None = None
) -> tuple[int, httpx.Response]:
    transport = httpx.ASGITransport(app=served)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://llm") as client:
        answer = await (client.post(path, json=body) if body is not None else client.get(path))
    return answer.status_code, answer


async def test_a_chat_has_the_text_the_tokens_and_their_log_probabilities():
    served = Served(scripted_model("It is 4."))
    body = {**ASKED, "return_token_ids": True, "logprobs": True}

    _, answer = await asked(served, "/v1/chat/completions", body)

    document = answer.json()
    choice = document["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "It is 4."}
    assert tokenizer().response_text(choice["token_ids"]) == "It is 4."
    assert "What is 2 + 2?" in tokenizer().decode(document["prompt_token_ids"])
    listed = choice["logprobs"]["content"]
    assert [each["logprob"] for each in listed] == list(map(logprob_of, choice["token_ids"]))
    assert document["usage"]["completion_tokens"] == len(choice["token_ids"])


async def test_a_stream_has_the_same_answer():
    served = Served(scripted_model("It is 4."))

    _, answer = await asked(served, "/v1/chat/completions", {**ASKED, "stream": True})

    events = answer.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    document = json.loads(events[0].removeprefix("data: "))
    assert document["choices"][0]["delta"]["content"] == "It is 4."


async def test_a_chat_with_a_call_of_a_tool_ends_with_it():
    called = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    _, answer = await asked(Served(scripted_model(called)), "/v1/chat/completions", ASKED)

    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "bash"


def test_the_tokens_of_a_prompt_and_seed_are_always_the_same_and_others_differ():
    model = scripted_model("The scheduler grants cores to an action. " * 20, odd_share=0.3)
    prompt = [1, 300, 301]

    samples = [tuple(model.respond(prompt, 500, seed).ids) for seed in (1, 1, 2)]

    assert samples[0] == samples[1]
    assert samples[0] != samples[2]
    assert len({tokenizer().response_text(each) for each in samples}) == 1


def test_an_answer_ends_at_its_length():
    found = scripted_model("one two three four").respond([1], 2)

    assert (len(found.ids), found.finish) == (2, "length")


def test_a_script_answers_by_the_last_turn_and_by_the_number_of_answers(tmp_path):
    path = tmp_path / "replies.yaml"
    path.write_text('- {when: "2 \\\\+ 2", say: "4"}\n- {when: "", say: ["first", "later"]}\n')
    reply = read_script(path)

    assert reply("user\n2 + 2", 0) == "4"
    assert [reply("user\nhello", turn) for turn in range(3)] == ["first", "later", "later"]


def test_a_script_that_is_no_list_says_what_to_give(tmp_path):
    path = tmp_path / "replies.yaml"
    path.write_text("when: hello")
    with pytest.raises(ValueError, match="list of rules"):
        read_script(path)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/nowhere", None, 404),
        ("/v1/chat/completions", {}, 400),
        ("/v1/completions", {"prompt": [1] * 40_000}, 400),
        ("/v1/completions", {"prompt": "2 + 2", "max_tokens": 4}, 200),
        ("/generate", {"prompt_ids": [1]}, 404),
        ("/health", None, 200),
    ],
)
async def test_statuses_are_those_of_an_engine(path, body, status):
    assert (await asked(Served(scripted_model("4")), path, body))[0] == status
