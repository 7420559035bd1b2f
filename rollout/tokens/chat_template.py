"""Chat template of a model: messages to the text of a prompt, equal to ``apply_chat_template`` of transformers.

A template is a Jinja2 program in the files of a model. It runs in Jinja2's sandbox, which gives it no attribute with an
underscore and no change of its arguments; it may still take long, so the operator chooses whose templates are used.

Rules
1. The environment has what transformers gives: ``trim_blocks``, ``lstrip_blocks``, loop controls, ``raise_exception``,
   ``tojson`` that escapes nothing, ``strftime_now``, and ``{% generation %}``, which changes no text.
2. Time is an argument: a prompt that names the date is the same when it is rendered again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from domain.errors import InvalidRequest

#: One message with the members of OpenAI's chat completions.
ChatMessage = Mapping[str, Any]


class TemplateRefused(InvalidRequest):
    """The chat template refuses the messages, or is no template."""


class ChatTemplate:
    """A compiled template. Has no state, so rollouts share it."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """``tokens``: names such as ``bos_token`` and their texts. Raises TemplateRefused."""
        self._tokens = dict(tokens or {})
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except TemplateError as error:
            raise TemplateRefused(f"the chat template is no Jinja2: {error}") from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        at: datetime,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of ``messages``; ``generation``: with the beginning of the model's answer.

        ``options`` are variables of the template, such as ``enable_thinking``. Raises TemplateRefused.
        """
        variables = {
            **self._tokens,
            **(options or {}),
            "messages": [dict(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": generation,
            "strftime_now": at.strftime,
        }
        try:
            return self._template.render(variables)
        except TemplateRefused:
            raise
        except Exception as error:  # a template is a program: it may raise anything
            raise TemplateRefused(
                f"the chat template refuses the messages: {type(error).__name__}: {error}"
            ) from error


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}``: encloses what the model writes."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


def _refuse(message: str) -> NoReturn:
    raise TemplateRefused(f"the chat template refuses the messages: {message}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    return made


_ENVIRONMENT = _environment()
