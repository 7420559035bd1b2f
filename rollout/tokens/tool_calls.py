"""Calls of tools in the text of a response, and its reasoning, as a message of OpenAI's chat completions.

Two forms are read, which most open models are trained on: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` (Hermes,
Qwen) and ``[TOOL_CALLS][{…}]`` (Mistral). Reasoning is what stands before ``</think>``.

Rules
1. Reading fails for no text. A call that cannot be read is left in the content, and `ReadResponse.problem` says why, so that
   an agent can answer the model with it. What is read can be encoded: half of a surrogate pair is replaced.
2. Ids of calls are derived from the turn's number and the call's place, so that reading a log again gives equal ids.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_BEGIN: Final = "<tool_call>"
_LIST: Final = "[TOOL_CALLS]"
_END_OF_REASONING: Final = "</think>"


class ReadResponse(NamedTuple):
    """A response as a message, and what could not be read of it."""

    message: dict[str, Any]
    #: Empty: everything was read.
    problem: str = ""


def read_response(text: str, turn: int = 0, *, reasoning_begun: bool = False) -> ReadResponse:
    """Return the message of a response's text.

    ``reasoning_begun``: the prompt ended within ``<think>``, so a text without its end is reasoning alone.
    """
    reasoning, content = _reasoning(text, begun=reasoning_begun)
    before, calls, problem = _calls(content)
    message: dict[str, Any] = {"role": "assistant", "content": before.strip() if calls else before}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{turn}_{place}", "type": "function", "function": call}
            for place, call in enumerate(calls)
        ]
    return ReadResponse(message, problem)


def _reasoning(text: str, *, begun: bool) -> tuple[str, str]:
    before, end, after = text.partition(_END_OF_REASONING)
    if end:
        return before.replace("<think>", "", 1).strip(), after.lstrip("\n")
    if begun or text.lstrip().startswith("<think>"):
        return text.replace("<think>", "", 1).strip(), ""
    return "", text


def _calls(content: str) -> tuple[str, list[dict[str, str]], str]:
    """Return the text before the calls, the calls, and the problem."""
    if _LIST in content:
        before, _, listed = content.partition(_LIST)
        bodies = [listed]
    else:
        bodies = _CALL.findall(content)
        before = content.partition(_BEGIN)[0]
        if content.count(_BEGIN) > len(bodies):
            return content, [], "a <tool_call> has no end"
    try:
        read = [call for body in bodies for call in _read(body)]
    except ValueError as error:
        return content, [], str(error)
    return (before if read else content), read, ""


def _read(body: str) -> list[dict[str, str]]:
    """Return the calls in one body. Raises ValueError, with words for the model."""
    try:
        found = encodable(json.loads(body.strip()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a tool call is no JSON: {error}") from error
    return [_function(each) for each in (found if isinstance(found, list) else [found])]


def _function(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        raise ValueError("a tool call has no name")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        return {"name": found["name"], "arguments": arguments}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {found['name']} are no JSON object")
    return {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}


def encodable(value: Any) -> Any:
    """Return a JSON value whose texts can be encoded: half of a surrogate pair, which JSON can escape, is replaced."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list():
            return [encodable(each) for each in value]
    return value
