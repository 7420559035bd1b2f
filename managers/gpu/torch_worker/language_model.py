"""Requests to a model of transformers: completions, chats, scores and embeddings, with caches by trajectory.

| path | body | answer |
|---|---|---|
| ``/v1/completions`` | ``prompt``: token ids or a text | `managers.gpu.torch_worker.openai_answers` |
| ``/v1/chat/completions`` | ``messages`` | the same |
| ``/v1/score`` | ``input`` | ``score``: the logits after the last token |
| ``/v1/embeddings`` | ``input``, one or a list | the mean of the last hidden states of each |

Rules
1. A request of a trajectory computes only what its trajectory's cache does not hold, and leaves a cache of all its tokens but the last,
   which nothing has been computed for. A request that breaks off leaves what was kept before.
2. Texts need a tokenizer: the folder's, else bytes where the vocabulary has room (`token_texts`).
3. Logits do not depend on whether another request was cached; those after a cached prefix and those of a whole prompt differ by the
   rounding of sums of other lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from managers.gpu.torch_worker.generation import Caller, Generation, Past, choices, generation_of
from managers.gpu.torch_worker.kv_caches import KvCache, KvCaches
from managers.gpu.torch_worker.openai_answers import AnswerShape, TokenChoice
from managers.gpu.torch_worker.token_texts import ByteTokenizer, GrowingText


class LanguageModel:
    """One model, its tokenizer and its caches."""

    def __init__(self, module: Any, tokenizer: Any, name: str = "") -> None:
        """``tokenizer``: of `token_texts`; None: bytes, where the vocabulary has room for them."""
        self.module = module
        self.name = name
        self.caches = KvCaches()
        #: Tokens of prompts that were computed since the start.
        self.prefilled_tokens = 0
        size = getattr(module.config, "vocab_size", 0) or 0
        if tokenizer is None and size >= ByteTokenizer.SIZE:
            tokenizer = ByteTokenizer()
        self._tokenizer = tokenizer

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of a prompt and its answer; None: the configuration does not say."""
        found = getattr(self.module.config, "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    def __call__(self, path: str, body: Any) -> Any:
        """Answer a request of no trajectory."""
        return self.answer(path, body, Caller())

    def answer(self, path: str, body: Any, caller: Caller) -> Any:
        """Return the answer to a request; None: it was sent as events. Raises ValueError for an invalid one."""
        if not isinstance(body, dict):
            raise ValueError("give a JSON object")
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self._generate(body, caller, chat=path == "/v1/chat/completions")
        if path == "/v1/score":
            return self._score(body, caller)
        if path == "/v1/embeddings":
            return self._embed(body)
        raise ValueError(
            "paths are /v1/completions, /v1/chat/completions, /v1/score and /v1/embeddings"
        )

    def layers(self) -> list[tuple[Any, Any]] | None:
        """Return keys and values of one token, which show what a cache of this model looks like; None: it has none."""
        past = Past(self.module, ())
        past.run([0])
        return past.layers(1)

    def keep(self, trajectory: str, ids: Sequence[int], past: Past) -> None:
        """Keep a trajectory's cache of the tokens ``ids``."""
        layers = past.layers(len(ids)) if trajectory else None
        if layers is not None:
            self.caches.keep(trajectory, kv_cache(ids, layers))

    def prefill(self, prompt: Sequence[int], trajectory: str) -> tuple[Any, Past, int]:
        """Compute what is not cached of a prompt; return the logits after it, the keys and values, and the cached tokens."""
        kept, cached = self.caches.reusable(trajectory, prompt) if trajectory else (None, 0)
        past = Past(self.module, kept.first(cached) if kept is not None else ())
        logits = past.run(prompt[cached:])
        self.prefilled_tokens += len(prompt) - cached
        return logits, past, cached

    def _generate(self, body: dict[str, Any], caller: Caller, *, chat: bool) -> Any:
        if not self.module.can_generate():
            raise ValueError("this model cannot generate text")
        prompt = self._chat_ids(body) if chat else self._ids(body.get("prompt"))
        stated = self.module.config.eos_token_id
        ends = [*(stated if isinstance(stated, list) else [stated]), *self._stop_ids(chat)]
        generation = generation_of(body, prompt, ends, self.context_tokens, chat=chat)
        if generation.stops and self._tokenizer is None:
            raise ValueError("stop needs a tokenizer: give stop_token_ids")
        shape = AnswerShape(str(body.get("model") or self.name), body, prompt, chat=chat)
        answer = RunningAnswer(self, generation, shape, caller)
        if not body.get("stream"):
            return answer.whole()
        options = body.get("stream_options")
        answer.stream(usage=isinstance(options, dict) and bool(options.get("include_usage")))
        return None

    def _stop_ids(self, chat: bool) -> Sequence[int]:
        """Return the tokenizer's ends: of a chat alone, as a completion may continue after them."""
        return self._tokenizer.stop_ids if chat else ()

    def growing(self, stops: Sequence[str]) -> GrowingText:
        """Return the text of an answer; always empty without a tokenizer."""
        decode = self._tokenizer.decode if self._tokenizer is not None else _no_text
        return GrowingText(decode, stops)

    def _score(self, body: dict[str, Any], caller: Caller) -> Any:
        ids = self._ids(body.get("input"))
        if not caller.trajectory:
            logits = self.module(input_ids=self._tensor(ids)).logits
            return {"score": logits.reshape(-1, logits.shape[-1])[-1].float().tolist()}
        last, past, cached = self.prefill(ids, caller.trajectory)
        self.keep(caller.trajectory, ids, past)
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": cached}}
        return {"score": last.float().tolist(), "usage": usage}

    def _embed(self, body: dict[str, Any]) -> Any:
        """Answer with one vector for each input, one after the other: texts differ in length."""
        given = body.get("input")
        if not isinstance(given, list) or not given or isinstance(given[0], int):
            given = [given]
        found = []
        for index, each in enumerate(given):
            ids = self._tensor(self._ids(each))
            hidden = self.module(input_ids=ids, output_hidden_states=True).hidden_states[-1]
            vector = hidden[0].mean(dim=0).float().tolist()
            found.append({"object": "embedding", "index": index, "embedding": vector})
        return {"object": "list", "data": found}

    def _chat_ids(self, body: dict[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages is a list of messages, at least one")
        if not all(isinstance(each, dict) for each in messages):
            raise ValueError("messages: each is an object with role and content")
        if self._tokenizer is None:
            raise ValueError("this model has no tokenizer: send token ids to /v1/completions")
        ids: list[int] = self._tokenizer.chat(messages, body.get("tools"))
        return ids

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str) and self._tokenizer is not None:
            prompt = self._tokenizer.encode(prompt)
        if not isinstance(prompt, list) or not all(type(each) is int for each in prompt):
            raise ValueError("a prompt is a list of token ids, or text where there is a tokenizer")
        if not prompt:
            raise ValueError("the prompt is empty")
        size = getattr(self.module.config, "vocab_size", None)
        if size and not 0 <= min(prompt) <= max(prompt) < size:
            raise ValueError(f"a prompt has ids of the vocabulary: 0 to {size - 1}")
        return prompt

    def _tensor(self, ids: Sequence[int]) -> Any:
        return torch.tensor([list(ids)], device=next(self.module.parameters()).device)


class RunningAnswer:
    """One answer while it is sampled."""

    def __init__(
        self, model: LanguageModel, generation: Generation, shape: AnswerShape, caller: Caller
    ) -> None:
        self._model, self._generation = model, generation
        self._shape, self._caller = shape, caller
        self._text = model.growing(generation.stops)
        self._chosen: list[TokenChoice] = []
        self._finish = "length"
        self._cached = 0

    def whole(self) -> dict[str, Any]:
        """Return the answer once it is complete."""
        text = "".join(piece for piece, _ in self._pieces()) + self._text.end()
        return self._shape.whole(text, self._chosen, self._finish, self._cached)

    def stream(self, *, usage: bool) -> None:
        """Send the answer as events, one for each token; none before the first, so that what fails until then has a status."""
        for piece, choice in self._pieces():
            if len(self._chosen) == 1:
                self._caller.event(self._shape.beginning())
            self._caller.event(self._shape.piece(piece, [choice]))
        self._caller.event(self._shape.piece(self._text.end(), [], self._finish))
        if usage:
            self._caller.event(self._shape.ending(len(self._chosen), self._cached))

    def _pieces(self) -> Any:
        """Yield each token and the text that it makes final; then keep the cache."""
        trajectory, prompt = self._caller.trajectory, self._generation.prompt
        logits, past, self._cached = self._model.prefill(prompt, trajectory)
        for choice, ended in choices(past, logits, self._generation, self._caller.check):
            self._chosen.append(choice)
            piece = self._text.push(choice.token)
            if ended or self._text.stopped:
                self._finish = "stop"
            yield piece, choice
            if self._text.stopped:
                break
        computed = [*prompt, *(each.token for each in self._chosen[:-1])]
        self._model.keep(trajectory, computed, past)


def kv_cache(ids: Sequence[int], layers: Sequence[tuple[Any, Any]]) -> KvCache:
    """Return the cache of ``ids``, with its bytes."""
    nbytes = sum(each.numel() * each.element_size() for pair in layers for each in pair)
    return KvCache(list(ids), layers, nbytes)


def _no_text(ids: Sequence[int]) -> str:
    return ""
