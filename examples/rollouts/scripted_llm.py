"""Language-model server that follows a script: real tokens, real protocols, no model. For examples and tests.

    python -m examples.rollouts.scripted_llm --port 8100 --dialect vllm --script replies.yaml

A script is a list of rules, the first one that matches answers; ``say`` may be a list, one text for each of the model's turns:

    - {when: "2 \\+ 2", say: "It is 4."}
    - {when: "", say: ["<tool_call>{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}</tool_call>", "Done."]}

``when`` is a regular expression, searched in the last turn before the answer. The tokens of a text are those of a real
byte-pair encoding, of which one in a hundred is replaced by two others with the same text, as a model samples them: a client
that encodes the text again gets other ids. Log-probabilities are a function of the id.

``/v1/models``, ``/v1/completions``, ``/v1/chat/completions`` (``openai``, ``vllm``, ``sglang``) with ``return_token_ids``, and
``/generate`` as ProRL Agent's trainer (``prorl``) or SGLang (``sglang``) have it. A client that asks for a stream gets one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import click
import uvicorn
import yaml

from rollout.tokens.chat_template import TemplateRefused
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.tokenizer import ModelTokenizer, load_tokenizer
from rollout.tokens.tool_calls import read_response

TOKENIZER: Final = Path(__file__).resolve().parent / "tokenizer"
DIALECTS: Final = ("openai", "vllm", "sglang", "prorl")
MODEL: Final = "scripted"
#: Date that templates name.
_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ODD_SHARE: Final = 0.01

#: From the text of the last turn, and the number of answers before it, to the text of an answer.
Reply = Callable[[str, int], str]
Send = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Rule:
    """One rule of a script."""

    when: str
    say: Sequence[str]


def scripted(rules: Sequence[Rule]) -> Reply:
    """Return the answers of a script: from the last turn's text and the number of former answers."""

    def reply(last: str, turn: int) -> str:
        for rule in rules:
            if re.search(rule.when, last):
                return rule.say[min(turn, len(rule.say) - 1)]
        return "I do not know."

    return reply


def read_script(path: Path) -> Reply:
    """Read a script. Raises ValueError."""
    listed = yaml.safe_load(path.read_text())
    if not isinstance(listed, list):
        raise ValueError(f"{path}: give a list of rules with `when` and `say`")
    rules = []
    for each in listed:
        say = each["say"]
        rules.append(Rule(str(each.get("when", "")), [say] if isinstance(say, str) else say))
    return scripted(rules)


@dataclass(frozen=True)
class Answered:
    """A response in tokens."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    finish: str


@cache
def _vocabulary() -> tuple[dict[str, int], dict[int, str]]:
    """Return the tokens of the encoding: text to id, and id to text."""
    ids: dict[str, int] = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    return ids, {number: text for text, number in ids.items()}


@dataclass
class ScriptedModel:
    """Responses in tokens: the script's texts, with odd tokens now and then."""

    reply: Reply
    tokenizer: ModelTokenizer = field(default_factory=lambda: load_tokenizer(TOKENIZER))
    odd_share: float = _ODD_SHARE
    context: int = 32_768

    def __post_init__(self) -> None:
        self._ids, self._texts = _vocabulary()

    @cached_property
    def encoder(self) -> PromptEncoder:
        """Return the encoder of chats."""
        return PromptEncoder(self.tokenizer, at=_DATE)

    def respond(self, prompt_ids: list[int], most: int, seed: int = 0) -> Answered:
        """Return the response to a prompt; the same prompt and seed give the same one."""
        text = self.tokenizer.decode(prompt_ids, special=True)
        turns = text.split("<|im_start|>")
        last = turns[-2] if len(turns) > 2 else text
        ids = self.tokenizer.encode(self.reply(last, text.count("<|im_start|>assistant") - 1))
        digest = hashlib.sha256(repr((prompt_ids, seed)).encode()).digest()
        ids = self._with_odd_tokens(ids, random.Random(digest))
        ids.append(max(self.tokenizer.stop_ids))
        finish = "stop" if len(ids) <= most else "length"
        kept = ids[:most]
        return Answered(prompt_ids, kept, [logprob_of(each) for each in kept], finish)

    def _with_odd_tokens(self, ids: list[int], chance: random.Random) -> list[int]:
        found: list[int] = []
        for number in ids:
            parts = self._splits(number) if chance.random() < self.odd_share else []
            found += chance.choice(parts) if parts else (number,)
        return found

    def _splits(self, number: int) -> list[tuple[int, int]]:
        """Return the pairs of tokens whose texts make up the text of a token."""
        text = self._texts.get(number, "")
        pairs = ((self._ids.get(text[:at]), self._ids.get(text[at:])) for at in range(1, len(text)))
        return [(one, two) for one, two in pairs if one is not None and two is not None]


def logprob_of(number: int) -> float:
    """Return the log-probability of a token, the same everywhere."""
    return -((number * 37) % 997 + 1) / 500


@dataclass
class Served:
    """The server as an ASGI application."""

    model: ScriptedModel
    dialect: str = "openai"
    #: Before an answer, and for each of its tokens.
    first_seconds: float = 0.0
    token_seconds: float = 0.0
    asked: int = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            status, answer = await self.answer(scope["path"], json.loads(body) if body else {})
        except (TemplateRefused, KeyError, TypeError, ValueError) as error:
            status, answer = 400, {"error": {"message": str(error), "type": "BadRequestError"}}
        if isinstance(answer, dict) and answer.pop("streamed", False):
            await _stream(send, answer)
        else:
            await _respond(send, status, json.dumps(answer).encode())

    async def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        if path == "/health":
            return 200, {"asked": self.asked}
        page = self._pages().get(path)
        if page is not None:
            return 200, page
        ask = self._requests().get(path)
        if ask is None:
            return 404, {"detail": "Not Found"}
        return 200, await ask(body)

    def _pages(self) -> dict[str, Any]:
        listed: dict[str, Any] = {"id": MODEL, "object": "model", "owned_by": "tangram"}
        if self.dialect == "vllm":
            listed["max_model_len"] = self.model.context
        pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": [listed]}}
        own: dict[str, dict[str, Any]] = {
            "openai": {},
            "vllm": {"/version": {"version": "0.11.0"}},
            "sglang": {
                "/get_model_info": {"model_path": MODEL, "is_generation": True},
                "/get_server_info": {"context_length": self.model.context},
            },
        }
        return {} if self.dialect == "prorl" else {**pages, **own[self.dialect]}

    def _requests(self) -> dict[str, Any]:
        if self.dialect == "prorl":
            return {"/generate": self._prorl}
        requests = {"/v1/completions": self._completion, "/v1/chat/completions": self._chat}
        return {**requests, "/generate": self._sglang} if self.dialect == "sglang" else requests

    async def respond(self, prompt_ids: list[int], most: int, seed: int | None) -> Answered:
        """Return a response after the time that it takes. Raises ValueError where it does not fit."""
        if len(prompt_ids) + 1 > self.model.context:
            raise ValueError(
                f"This model's maximum context length is {self.model.context} tokens."
                f" However, your prompt has {len(prompt_ids)}."
            )
        self.asked += 1
        most = min(most, self.model.context - len(prompt_ids))
        answered = self.model.respond(prompt_ids, most, seed or 0)
        seconds = self.first_seconds + self.token_seconds * len(answered.ids)
        if seconds:
            await asyncio.sleep(seconds)
        return answered

    async def _prorl(self, body: dict[str, Any]) -> dict[str, Any]:
        found = await self.respond(body["prompt_ids"], body["max_tokens"], body.get("seed"))
        return {"response_ids": found.ids, "logprobs": found.logprobs}

    async def _sglang(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body.get("sampling_params") or {}
        ids, most = body["input_ids"], sampling.get("max_new_tokens", 128)
        found = await self.respond(ids, most, sampling.get("sampling_seed"))
        listed = [
            [value, each, None] for each, value in zip(found.ids, found.logprobs, strict=True)
        ]
        finish = {"type": found.finish}
        meta = {"prompt_tokens": len(ids), "finish_reason": finish, "weight_version": "default"}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = listed
        text = self.model.tokenizer.decode(found.ids)
        return {"text": text, "output_ids": found.ids, "meta_info": meta}

    async def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        ids = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        found = await self.respond(ids, body.get("max_tokens", 16), body.get("seed"))
        choice = {"text": self.model.tokenizer.decode(found.ids), **self._of_tokens(body, found)}
        return _envelope("text_completion", found, choice, body)

    async def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = [{**each, "content": each.get("content") or ""} for each in body["messages"]]
        ids = self.model.encoder.opening(messages, body.get("tools"))
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 4096
        found = await self.respond(ids, most, body.get("seed"))
        text = self.model.tokenizer.response_text(found.ids)
        read = read_response(text, turn=len(messages))
        choice = {"message": read.message, **self._of_tokens(body, found)}
        if read.message.get("tool_calls"):
            choice["finish_reason"] = "tool_calls"
        answer = _envelope("chat.completion", found, choice, body)
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = found.prompt_ids
        return answer

    def _of_tokens(self, body: Mapping[str, Any], found: Answered) -> dict[str, Any]:
        members: dict[str, Any] = {"finish_reason": found.finish}
        if body.get("return_token_ids"):
            members["token_ids"] = found.ids
            if "prompt" in body:
                members["prompt_token_ids"] = found.prompt_ids
        # 0 asks for those of the sampled tokens alone.
        if body.get("logprobs") is not None and body["logprobs"] is not False:
            names = [f"token_id:{each}" for each in found.ids]
            values = found.logprobs
            if "prompt" in body:
                members["logprobs"] = {"tokens": names, "token_logprobs": values}
            else:
                listed = zip(names, values, strict=True)
                members["logprobs"] = {
                    "content": [{"token": name, "logprob": value} for name, value in listed]
                }
        return members


def _envelope(
    kind: str, found: Answered, choice: dict[str, Any], body: Mapping[str, Any]
) -> dict[str, Any]:
    prompt, response = len(found.prompt_ids), len(found.ids)
    return {
        "id": "cmpl-" + hashlib.sha256(repr(found.ids).encode()).hexdigest()[:16],
        "object": kind,
        "created": 0,
        "model": body.get("model") or MODEL,
        "choices": [{"index": 0, **choice}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": response,
            "total_tokens": prompt + response,
        },
        **({"streamed": True} if body.get("stream") else {}),
    }


async def _respond(send: Send, status: int, data: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _stream(send: Send, answer: dict[str, Any]) -> None:
    """Send an answer as events: one piece with everything, then the end."""
    choice = answer["choices"][0]
    if "message" in choice:
        choice["delta"] = choice.pop("message")
        answer["object"] = "chat.completion.chunk"
    data = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode()
    await _respond(send, 200, data, b"text/event-stream")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8100, show_default=True)
@click.option("--dialect", type=click.Choice(DIALECTS), default="openai", show_default=True)
@click.option("--script", type=click.Path(exists=True, path_type=Path), default=None)
@click.option("--token-seconds", default=0.0, help="Time for each token of an answer.")
@click.option("--context", default=32_768, show_default=True, help="Tokens of the context.")
def main(
    host: str, port: int, dialect: str, script: Path | None, token_seconds: float, context: int
) -> None:
    """Serve a script as a language model."""
    reply = read_script(script) if script is not None else scripted([Rule("", ["Hello."])])
    served = Served(ScriptedModel(reply, context=context), dialect, token_seconds=token_seconds)
    uvicorn.run(served, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
