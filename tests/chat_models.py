"""Models of chats for tests: the tokenizer of the examples, and templates with the habits of published models."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.tokens.chat_template import ChatTemplate
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.tokenizer import ModelTokenizer, load_tokenizer

AT = datetime(2026, 11, 23, tzinfo=UTC)

#: Drops the reasoning of turns before the last question, as reasoning models do.
FORGETFUL = """
{%- set state = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set text = message.content %}
{%- if '</think>' in text and loop.index0 < state.last %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' + text + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}
"""

#: Begins with a token, trims texts, names the date, ends turns with the token for the end of a text.
DATED = """
{{- bos_token }}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '[' + strftime_now('%d %B %Y') + ']\\n' }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ 'A: ' + message.content | trim + eos_token }}{% endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- 'T: ' + message.content | tojson + '\\n' }}
    {%- else %}
        {{- message.role[0] | upper + ': ' + message.content | trim + '\\n' }}
    {%- endif %}
{%- endfor %}
"""

#: Questions and answers take turns, or it refuses; leaves the loop early.
STRICT = """
{%- set kept = messages if messages[0].role != 'system' else messages[1:] %}
{%- for message in kept %}
    {%- if message.role == 'stop' %}{% break %}{% endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles take turns') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (messages[0].content + '\\n' if loop.first and messages[0].role == 'system' else '') + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {"forgetful": FORGETFUL, "dated": DATED, "strict": STRICT}


@cache
def tokenizer() -> ModelTokenizer:
    """Return the tokenizer of the examples, with its template."""
    return load_tokenizer(TOKENIZER)


def encoder(template: str | None = None, **options: object) -> PromptEncoder:
    """Return the encoder of a template, of the examples' own by default."""
    source = template if template is not None else tokenizer().chat_template
    return PromptEncoder(tokenizer(), at=AT, template=_compiled(source or ""), options=options)


@cache
def _compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
