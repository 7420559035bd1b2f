"""Answers in OpenAI's shapes: completions and chats, whole or as events, with token ids as vLLM returns them.

| member of the request | in the answer |
|---|---|
| ``return_token_ids`` | ``prompt_token_ids``, and ``token_ids`` of a chat or its events; completions always have them |
| ``logprobs`` (0 too, or true) | the log-probability of each token; tokens are named ``token_id:N`` |
| ``stream`` | events; with ``stream_options.include_usage`` the last one has ``usage`` |

``usage.prompt_tokens_details.cached_tokens`` counts the tokens of the prompt that were not computed again. Equal requests have
equal ids of answers, and no answer has a time: a fixed request has a fixed answer (I12).

Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class TokenChoice(NamedTuple):
    """A sampled token and its log-probability in the model's own distribution."""

    token: int
    logprob: float


class AnswerShape:
    """The shape of one answer."""

    def __init__(
        self, model: str, body: Mapping[str, Any], prompt: Sequence[int], *, chat: bool
    ) -> None:
        self._model, self._prompt, self._chat = model, list(prompt), chat
        self._with_prompt = bool(body.get("return_token_ids"))
        # Completions have always had them; chats have them as vLLM has.
        self._with_ids = self._with_prompt or not chat
        wanted = body.get("logprobs")
        self._with_logprobs = wanted is not None and wanted is not False
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]
        self._id = ("chatcmpl-" if chat else "cmpl-") + digest

    def whole(
        self, text: str, chosen: Sequence[TokenChoice], finish: str, cached: int
    ) -> dict[str, Any]:
        """Return the whole answer."""
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, **self._of_tokens(chosen), "finish_reason": finish}
        answer = self._envelope("chat.completion" if self._chat else "text_completion", [choice])
        self._add_prompt(answer, choice)
        return {**answer, "usage": self.usage(len(chosen), cached)}

    def beginning(self) -> dict[str, Any]:
        """Return the first event: the role of the answer, and the ids of the prompt where they are wanted."""
        said: dict[str, Any] = (
            {"delta": {"role": "assistant", "content": ""}} if self._chat else {"text": ""}
        )
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": None}
        answer = self._envelope(self._event, [choice])
        self._add_prompt(answer, choice)
        return answer

    def piece(
        self, text: str, chosen: Sequence[TokenChoice], finish: str | None = None
    ) -> dict[str, Any]:
        """Return one event: new text, the tokens sampled since the former event, and how the answer ended."""
        said = {"delta": {"content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, **self._of_tokens(chosen), "finish_reason": finish}
        return self._envelope(self._event, [choice])

    def ending(self, count: int, cached: int) -> dict[str, Any]:
        """Return the event of the usage, after the last choice."""
        return {**self._envelope(self._event, []), "usage": self.usage(count, cached)}

    def usage(self, count: int, cached: int) -> dict[str, Any]:
        """Return the tokens of the prompt, of them the cached ones, and of the answer."""
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": count,
            "total_tokens": len(self._prompt) + count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def _event(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": 0,
            "model": self._model,
            "choices": choices,
        }

    def _add_prompt(self, answer: dict[str, Any], choice: dict[str, Any]) -> None:
        """Put the ids of the prompt where vLLM has them: in a chat beside the choices, else in the choice."""
        if self._with_prompt:
            (answer if self._chat else choice)["prompt_token_ids"] = self._prompt

    def _of_tokens(self, chosen: Sequence[TokenChoice]) -> dict[str, Any]:
        members: dict[str, Any] = {"logprobs": None}
        if self._with_ids:
            members["token_ids"] = [each.token for each in chosen]
        if not self._with_logprobs:
            return members
        names = [f"token_id:{each.token}" for each in chosen]
        values = [each.logprob for each in chosen]
        if self._chat:
            listed: list[dict[str, Any]] = [
                {"token": name, "logprob": value, "bytes": None, "top_logprobs": []}
                for name, value in zip(names, values)
            ]
            members["logprobs"] = {"content": listed}
        else:
            members["logprobs"] = {"tokens": names, "token_logprobs": values}
        return members
