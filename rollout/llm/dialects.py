"""Dialects of engines: the request that samples tokens after token ids, and what its answer means.

| dialect | request | answer |
|---|---|---|
| ``prorl`` | ``/generate {prompt_ids, max_tokens, …}`` | ``{response_ids, logprobs}`` |
| ``sglang`` | ``/generate {input_ids, sampling_params, return_logprob}`` | ``{output_ids, meta_info}`` |
| ``vllm`` | ``/v1/completions`` with ids and ``return_token_ids`` | ``choices[0].token_ids``, ``logprobs.token_logprobs`` |
| ``openai`` | the same | ids as above, or names ``token_id:N`` as earlier versions of vLLM give them |

``openai`` is every server that completes token ids and returns token ids; Tangram's services of engine ``torch`` are such.

Rules
1. An answer without token ids is refused: the tokens of its text are not those that were sampled.
2. An engine that reports the prompt must report the one that was sent. One that changed it (cut, or with a token of its
   own) sampled after other tokens than the trainer will use.
3. Everything of an answer is checked; `MalformedAnswer` says what was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from rollout.llm.sampling_options import SamplingOptions
from rollout.tokens.sampled import InvalidTokens, SampledTokens, checked_tokens

#: From this length on a response that repeats the whole prompt is an echo: no model repeats so much exactly.
_ECHO_TOKENS: Final = 8
_TOKEN_NAME: Final = "token_id:"
T = TypeVar("T")


class MalformedAnswer(Exception):
    """The backend answered what no correct engine answers."""


class TokenRequest(NamedTuple):
    """One POST of JSON."""

    path: str
    body: dict[str, Any]


class AskedFor(NamedTuple):
    """What an answer is checked against."""

    prompt_ids: Sequence[int]
    #: Most tokens of the response.
    most: int
    vocabulary_size: int
    need_logprobs: bool = True


class Dialect(Protocol):
    """One way to ask for tokens."""

    name: str

    def request(
        self, prompt_ids: Sequence[int], options: SamplingOptions, most: int, model: str
    ) -> TokenRequest:
        """Return the request for at most ``most`` tokens."""

    def read(self, data: bytes, asked: AskedFor) -> SampledTokens:
        """Return the tokens of an answer. Raises MalformedAnswer."""


class _ProrlAnswer(msgspec.Struct):
    response_ids: list[int]
    logprobs: list[float | None] | None = None
    finish_reason: str | None = None


class ProrlDialect:
    """``/generate`` of ProRL Agent's trainer."""

    name = "prorl"

    def request(
        self, prompt_ids: Sequence[int], options: SamplingOptions, most: int, model: str
    ) -> TokenRequest:
        """Return the request for at most ``most`` tokens."""
        body = {**_shared(options), "prompt_ids": list(prompt_ids), "max_tokens": most}
        return TokenRequest("/generate", body)

    def read(self, data: bytes, asked: AskedFor) -> SampledTokens:
        """Return the tokens of an answer, without the prompt where the engine repeats it."""
        answer = _decoded(data, _ProrlAnswer)
        ids, logprobs = answer.response_ids, answer.logprobs
        count = len(asked.prompt_ids)
        if count >= _ECHO_TOKENS and ids[:count] == list(asked.prompt_ids):
            if logprobs is not None and len(logprobs) == len(ids):
                logprobs = logprobs[count:]
            ids = ids[count:]
        finish = answer.finish_reason or ("length" if len(ids) >= asked.most else "stop")
        return _checked(ids, logprobs, asked, finish)


class _SglangFinish(msgspec.Struct):
    type: str = "stop"
    message: str | None = None


class _SglangMeta(msgspec.Struct):
    finish_reason: _SglangFinish | None = None
    prompt_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None


class _SglangAnswer(msgspec.Struct):
    meta_info: _SglangMeta
    output_ids: list[int] | None = None


class SglangDialect:
    """SGLang's own ``/generate``."""

    name = "sglang"

    def request(
        self, prompt_ids: Sequence[int], options: SamplingOptions, most: int, model: str
    ) -> TokenRequest:
        """Return the request for at most ``most`` tokens."""
        shared = _shared(options)
        # SGLang has these under another name, or takes no seed unless it is started deterministic.
        if "min_tokens" in shared:
            shared["min_new_tokens"] = shared.pop("min_tokens")
        if "seed" in shared:
            shared["sampling_seed"] = shared.pop("seed")
        sampling = {
            **shared,
            "max_new_tokens": most,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        body = {
            "input_ids": list(prompt_ids),
            "sampling_params": sampling,
            "return_logprob": options.need_logprobs,
            "stream": False,
        }
        return TokenRequest("/generate", body)

    def read(self, data: bytes, asked: AskedFor) -> SampledTokens:
        """Return the tokens of an answer. Raises MalformedAnswer."""
        answer = _decoded(data, _SglangAnswer)
        meta = answer.meta_info
        finish = meta.finish_reason or _SglangFinish()
        if finish.type == "abort":
            raise MalformedAnswer(f"the engine ended the request: {finish.message or 'abort'}")
        if meta.prompt_tokens is not None and meta.prompt_tokens != len(asked.prompt_ids):
            raise MalformedAnswer(
                f"a prompt of {meta.prompt_tokens} tokens, where {len(asked.prompt_ids)} were sent"
            )
        listed = meta.output_token_logprobs
        named = None if listed is None else [each[1] for each in listed]
        ids = answer.output_ids if answer.output_ids is not None else named
        if ids is None:
            raise MalformedAnswer("neither output_ids nor output_token_logprobs")
        if named is not None and named != ids:
            raise MalformedAnswer("output_ids and output_token_logprobs have different tokens")
        logprobs = None if listed is None else [each[0] for each in listed]
        return _checked(ids, logprobs, asked, finish.type)


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _LogProbs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class CompletionsDialect:
    """``/v1/completions`` with token ids as the prompt, and token ids in the answer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def request(
        self, prompt_ids: Sequence[int], options: SamplingOptions, most: int, model: str
    ) -> TokenRequest:
        """Return the request for at most ``most`` tokens."""
        body: dict[str, Any] = {
            **_shared(options),
            "prompt": list(prompt_ids),
            "max_tokens": most,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }
        if model:
            body["model"] = model
        if options.need_logprobs:
            body["logprobs"] = 0 if self.name == "vllm" else 1
        return TokenRequest("/v1/completions", body)

    def read(self, data: bytes, asked: AskedFor) -> SampledTokens:
        """Return the tokens of an answer. Raises MalformedAnswer."""
        choices = _decoded(data, _Completion).choices
        if len(choices) != 1:
            raise MalformedAnswer(f"{len(choices)} choices, where one was asked for")
        choice = choices[0]
        if choice.prompt_token_ids not in (None, list(asked.prompt_ids)):
            raise MalformedAnswer("the engine changed the prompt: prompt_token_ids are others")
        found = choice.logprobs or _LogProbs()
        ids = choice.token_ids if choice.token_ids is not None else _named_ids(found.tokens)
        if ids is None:
            raise MalformedAnswer("no token_ids: the engine returns text alone")
        return _checked(ids, found.token_logprobs, asked, choice.finish_reason or "stop")


def _named_ids(names: Sequence[str] | None) -> list[int] | None:
    """Return the ids of names ``token_id:N``, None for other names."""
    numbers = [name.removeprefix(_TOKEN_NAME) for name in names or ()]
    if names is None or not all(map(str.isdecimal, numbers)):
        return None
    return [int(number) for number in numbers]


def _shared(options: SamplingOptions) -> dict[str, Any]:
    """Return the options that all engines name alike; what has its default is left out."""
    body: dict[str, Any] = {
        **options.engine,
        "temperature": options.temperature,
        "top_p": options.top_p,
    }
    optional: dict[str, tuple[Any, Any]] = {
        "top_k": (options.top_k, -1),
        "min_p": (options.min_p, 0.0),
        "seed": (options.seed, None),
        "stop": (list(options.stop), []),
        "stop_token_ids": (list(options.stop_token_ids), []),
    }
    body.update({name: value for name, (value, default) in optional.items() if value != default})
    return body


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = " (it contains NaN or Infinity)" if b"NaN" in data or b"Infinity" in data else ""
        raise MalformedAnswer(f"an answer of another form: {error}{hint}") from error


def _checked(
    ids: list[int], logprobs: Sequence[float | None] | None, asked: AskedFor, finish: str
) -> SampledTokens:
    try:
        return checked_tokens(
            ids,
            logprobs,
            vocabulary_size=asked.vocabulary_size,
            most=asked.most,
            finish=finish,
            need_logprobs=asked.need_logprobs,
        )
    except InvalidTokens as error:
        raise MalformedAnswer(str(error)) from error


DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        ProrlDialect(),
        SglangDialect(),
        CompletionsDialect("vllm"),
        CompletionsDialect("openai"),
    )
}
