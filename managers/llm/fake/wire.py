"""Wire: requests for tokens as vLLM and SGLang take them over HTTP, and the answers that they give.

| path | engine | prompt | tokens |
|---|---|---|---|
| ``/v1/completions`` | both | ``prompt``, text or ids | ``max_tokens`` |
| ``/v1/chat/completions`` | both | ``messages`` | ``max_completion_tokens`` or ``max_tokens`` |
| ``/generate`` | SGLang | ``input_ids`` or ``text`` | ``sampling_params.max_new_tokens`` |

With ``ignore_eos`` an answer has exactly so many tokens, otherwise at most. ``priority`` is an integer; which is served first is the
engine's setting. ``stream`` gives server-sent events, ended by ``[DONE]``; usage as ``stream_options.include_usage`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from managers.llm.fake.paced_engine import PacedAnswer
from managers.llm.fake.word_tokens import answer_length, chat_ids, ids_of, logprob_of, text_of

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
GENERATE: Final = "/generate"
_DEFAULT_TOKENS: Final = {COMPLETIONS: 16, CHAT: 4096, GENERATE: 128}


class WrongRequest(ValueError):
    """A request that the engine refuses with 400."""


@dataclass(frozen=True)
class WireRequest:
    """One request for tokens."""

    path: str
    body: Mapping[str, Any]
    prompt_ids: list[int]
    tokens: int
    priority: int | None
    seed: int

    @property
    def streams(self) -> bool:
        """Whether the answer is to come as events."""
        return bool(self.body.get("stream"))


def read_request(path: str, body: Mapping[str, Any]) -> WireRequest:
    """Return the request of a body. Raises WrongRequest, naming the member."""
    sampling = body.get("sampling_params") or {} if path == GENERATE else body
    prompt = _prompt(path, body)
    names = ("max_new_tokens",) if path == GENERATE else ("max_completion_tokens", "max_tokens")
    most = next((sampling[each] for each in names if sampling.get(each)), _DEFAULT_TOKENS[path])
    seed = sampling.get("seed") or sampling.get("sampling_seed") or 0
    priority = body.get("priority")
    for name, value in ((names[-1], most), ("seed", seed), ("priority", priority or 0)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise WrongRequest(f"{name} must be an integer, not {value!r}")
    if most < 1:
        raise WrongRequest(f"{names[-1]} must be at least 1, not {most}")
    exact = sampling.get("ignore_eos") or sampling.get("min_tokens", 0) >= most
    tokens = most if exact else answer_length(prompt, seed, most)
    return WireRequest(path, body, prompt, tokens, priority, seed)


def _prompt(path: str, body: Mapping[str, Any]) -> list[int]:
    if path == CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(
            isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages
        ):
            raise WrongRequest("messages must be a list of objects with a role")
        return chat_ids(messages)
    prompt = body.get("prompt")
    if path == GENERATE:
        prompt = body["input_ids"] if body.get("input_ids") is not None else body.get("text")
    if isinstance(prompt, str):
        return ids_of(prompt)
    if not isinstance(prompt, list) or not all(isinstance(each, int) for each in prompt):
        raise WrongRequest("the prompt must be a text or a list of token ids")
    return prompt


def finish_of(request: WireRequest, answer: PacedAnswer) -> str:
    """Return why an answer ended."""
    sampling = request.body.get("sampling_params") or {}
    return "length" if sampling.get("ignore_eos") or request.body.get("ignore_eos") else "stop"


def usage_of(answer: PacedAnswer) -> dict[str, Any]:
    """Return the tokens of an answer, as both engines report them."""
    return {
        "prompt_tokens": len(answer.prompt_ids),
        "completion_tokens": answer.sampled,
        "total_tokens": len(answer.prompt_ids) + answer.sampled,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def whole(request: WireRequest, answer: PacedAnswer, model: str) -> dict[str, Any]:
    """Return the JSON of a complete answer."""
    if request.path == GENERATE:
        return generated(request, answer)
    choice = _choice(request, answer, 0, delta=False)
    chat = request.path == CHAT
    body = {
        "id": answer.key,
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": request.body.get("model") or model,
        "choices": [choice],
        "usage": usage_of(answer),
    }
    if chat and request.body.get("return_token_ids"):
        body["prompt_token_ids"] = answer.prompt_ids
    return body


def piece(request: WireRequest, answer: PacedAnswer, said: int, model: str) -> dict[str, Any]:
    """Return the event with the tokens from number ``said`` on."""
    if request.path == GENERATE:
        return generated(request, answer)  # each event has all so far
    return {
        "id": answer.key,
        "object": "chat.completion.chunk" if request.path == CHAT else "text_completion",
        "created": 0,
        "model": request.body.get("model") or model,
        "choices": [_choice(request, answer, said, delta=True)],
    }


def usage_piece(request: WireRequest, answer: PacedAnswer, model: str) -> dict[str, Any] | None:
    """Return the last event, which has the usage; None where it was not asked for."""
    options = request.body.get("stream_options") or {}
    if request.path == GENERATE or not options.get("include_usage"):
        return None
    event = piece(request, answer, answer.sampled, model)
    return {**event, "choices": [], "usage": usage_of(answer)}


def generated(request: WireRequest, answer: PacedAnswer) -> dict[str, Any]:
    """Return an answer of SGLang's own protocol, with the tokens so far."""
    ids = answer.ids[: answer.sampled]
    finish = None
    if answer.complete:
        kind = finish_of(request, answer)
        finish = {"type": kind, "length": len(ids)} if kind == "length" else {"type": kind}
    meta: dict[str, Any] = {
        "id": answer.key,
        "finish_reason": finish,
        "prompt_tokens": len(answer.prompt_ids),
        "completion_tokens": len(ids),
        "cached_tokens": answer.cached_tokens,
        "weight_version": "default",
    }
    if request.body.get("return_logprob"):
        meta["output_token_logprobs"] = [[logprob_of(each), each, None] for each in ids]
    return {"text": text_of(ids), "output_ids": ids, "meta_info": meta}


def _choice(request: WireRequest, answer: PacedAnswer, said: int, *, delta: bool) -> dict[str, Any]:
    ids = answer.ids[said : answer.sampled]
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish_of(request, answer) if answer.complete else None,
    }
    if request.path == CHAT:
        message = {"role": "assistant", "content": text_of(ids)}
        choice["delta" if delta else "message"] = message
    else:
        choice["text"] = text_of(ids)
    body = request.body
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
        if request.path == COMPLETIONS and said == 0:
            choice["prompt_token_ids"] = answer.prompt_ids
    # 0 asks for those of the sampled tokens alone.
    if body.get("logprobs") is not None and body["logprobs"] is not False:
        names, values = [f"token_id:{each}" for each in ids], [logprob_of(each) for each in ids]
        if request.path == COMPLETIONS:
            choice["logprobs"] = {"tokens": names, "token_logprobs": values}
        else:
            listed = zip(names, values, strict=True)
            choice["logprobs"] = {
                "content": [{"token": name, "logprob": value} for name, value in listed]
            }
    return choice
