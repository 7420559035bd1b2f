"""Prompts of a conversation in tokens: what the model sampled is kept as it was sampled, only new messages are tokenised.

A response that is decoded and encoded again is often other ids: one sampled token may be two tokens of the encoder.
A trainer would then compute probabilities of tokens that the model never chose. So the next prompt is the former prompt,
the sampled ids, and the tokens of what follows them: the end of the turn, the new messages, the beginning of an answer.

Rules
1. What follows a response is rendered by the template itself, after a stand-in for the response's text in a conversation of one
   question. A template that renders former turns in another way, as models that drop former reasoning do, changes
   nothing of what was sampled.
2. The end of the turn is added where the response has none, as when it was cut at its length; never twice.
3. Texts of messages are literal (`rollout.tokens.tokenizer`), those of the system aside: neither a tool's output nor an
   issue's text can contain a special token.
4. Arguments of calls, which OpenAI's protocol has as JSON text, are given to the template as objects, as engines do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from rollout.tokens.chat_template import ChatMessage, ChatTemplate, TemplateRefused
from rollout.tokens.tokenizer import ModelTokenizer
from rollout.tokens.tool_calls import encodable

#: Stands for the text of a response while a template renders what follows it.
_STAND_IN: Final = "\ufddf"
_QUESTION: Final = {"role": "user", "content": "?"}
#: Roles whose texts may contain special tokens.
_TRUSTED: Final = frozenset({"system", "developer"})


class PromptEncoder:
    """Prompts of one rollout's conversations: a tokenizer, a template, its options, and the time that it names.

    The time is that of the rollout, not of the worker: another worker renders the same prompts.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        at: datetime,
        template: ChatTemplate | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """``template``: instead of the model's own. Raises TemplateRefused where there is none."""
        if template is None:
            if tokenizer.chat_template is None:
                raise TemplateRefused("the model has no chat template; give one")
            template = ChatTemplate(tokenizer.chat_template, tokenizer.template_tokens)
        self.tokenizer = tokenizer
        self._template = template
        self._options = dict(options or {})
        self._at = at

    def opening(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the ids of a first prompt. Raises TemplateRefused."""
        return self.tokenizer.encode(self._render(self._literal(messages), tools, generation=True))

    def continuation(
        self, sampled: Sequence[int], answer: ChatMessage, new: Sequence[ChatMessage]
    ) -> list[int]:
        """Return the ids that follow a response, up to the beginning of the next one.

        ``sampled``: ids of the response; ``answer``: its message, for calls of tools that the template refers to.
        Raises TemplateRefused.
        """
        try:
            follows = self._follows(answer, new)
        except TemplateRefused:
            if not answer.get("tool_calls"):
                raise
            # Some templates refuse calls that the model has sampled all the same, such as two at once.
            follows = self._follows({}, new)
        ids = self.tokenizer.encode(self._end_of_turn + follows)
        return ids[1:] if _ends_with_first(sampled, ids, self.tokenizer.stop_ids) else ids

    def _follows(self, answer: ChatMessage, new: Sequence[ChatMessage]) -> str:
        """Return what the template renders behind the turn of an answer."""
        stand_in = {**_with_objects(answer), "role": "assistant", "content": _STAND_IN}
        stand_in.pop("reasoning_content", None)
        before = _after(self._render([_QUESTION, stand_in]))
        after = _after(
            self._render([_QUESTION, stand_in, *self._literal(new)], None, generation=True)
        )
        if not after.startswith(before):
            roles = ", ".join(str(message.get("role")) for message in new)
            raise TemplateRefused(f"the chat template changes a turn when {roles} follows it")
        return after[len(before) :]

    @cached_property
    def _end_of_turn(self) -> str:
        text = self._render([_QUESTION, {"role": "assistant", "content": _STAND_IN}])
        if _STAND_IN not in text:
            raise TemplateRefused("the chat template leaves out the text of an answer")
        return _after(text)

    def _render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = False,
    ) -> str:
        return self._template.render(
            messages, at=self._at, tools=tools, generation=generation, options=self._options
        )

    def _literal(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return [
            message
            if message.get("role") in _TRUSTED
            else {name: self._literal_value(value) for name, value in message.items()}
            for message in map(_with_objects, messages)
        ]

    def _literal_value(self, value: Any) -> Any:
        match value:
            case str():
                return self.tokenizer.literal(value)
            case dict():
                return {name: self._literal_value(each) for name, each in value.items()}
            case list() | tuple():
                return [self._literal_value(each) for each in value]
        return value


def _with_objects(message: ChatMessage) -> ChatMessage:
    """Return a message whose calls have objects as arguments, where their text is JSON of one."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_call_with_object(call) for call in calls]}


def _call_with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = encodable(json.loads(function["arguments"]))
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _after(text: str) -> str:
    """Return what follows the stand-in; the whole text where the template leaves it out."""
    return text.rpartition(_STAND_IN)[2]


def _ends_with_first(sampled: Sequence[int], ids: Sequence[int], stop_ids: frozenset[int]) -> bool:
    return bool(len(sampled) and ids and sampled[-1] == ids[0] and ids[0] in stop_ids)
