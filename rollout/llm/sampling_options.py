"""Options of sampling, as trainers state them: ``sampling_params`` of a rollout.

Rules
1. Unknown members pass: trainers send options of agents and of their own beside those of engines. What an engine does not
   know never reaches it; `unused` names it.
2. A response has at most ``max_tokens`` tokens, and never more than the context leaves; without either limit `room` asks
   for `DEFAULT_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest

DEFAULT_TOKENS: Final = 4096
#: Prefix of model names of LiteLLM, which published clients send.
_PROVIDERS: Final = ("hosted_vllm/", "openai/", "vllm/", "sglang/")
#: Members by the names that trainers use → ours.
_ALIASES: Final = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_model_len": "max_context_tokens",
    "max_input_tokens": "max_context_tokens",
}
#: Options that engines share and that are passed on as they are.
ENGINE_OPTIONS: Final = frozenset(
    "presence_penalty frequency_penalty repetition_penalty min_tokens ignore_eos logit_bias".split()
)


class ContextOverflow(Exception):
    """The conversation has filled the model's context: no token of a response fits."""


class SamplingOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How responses are sampled. Immutable."""

    model: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    #: -1: all tokens.
    top_k: int = -1
    min_p: float = 0.0
    #: Of one response.
    max_tokens: int | None = None
    #: Of prompt and response together: the model's context, or less.
    max_context_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    #: Whether an answer without log-probabilities is refused.
    need_logprobs: bool = True
    #: Members of `ENGINE_OPTIONS`.
    engine: dict[str, Any] = {}
    #: Names of members that nothing here uses.
    unused: tuple[str, ...] = ()

    def room(self, prompt_tokens: int, backend_limit: int | None = None) -> int:
        """Return the most tokens of a response behind a prompt. Raises ContextOverflow."""
        limits = [each for each in (self.max_context_tokens, backend_limit) if each]
        left = min(limits) - prompt_tokens if limits else None
        if left is not None and left < 1:
            raise ContextOverflow(
                f"{prompt_tokens} tokens of a context of {min(limits)}: no token is left for a response"
            )
        wanted = self.max_tokens or (DEFAULT_TOKENS if left is None else left)
        return wanted if left is None else min(wanted, left)


_OWN: Final = frozenset(SamplingOptions.__struct_fields__) - {"engine", "unused"}


def sampling_options(stated: Mapping[str, Any]) -> SamplingOptions:
    """Return the options of ``sampling_params``. Raises InvalidRequest, which names the member."""
    known: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    unused: list[str] = []
    for name, value in stated.items():
        if value is None:
            continue
        ours = _ALIASES.get(name, name)
        if ours in _OWN:
            known[ours] = value
        elif name in ENGINE_OPTIONS:
            engine[name] = value
        else:
            unused.append(name)
    model = known.get("model")
    if isinstance(model, str):
        known["model"] = _without_provider(model)
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    try:
        options = msgspec.convert(
            {**known, "engine": engine, "unused": sorted(unused)}, SamplingOptions
        )
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"sampling: {error}", pointer="/sampling") from error
    _check(options)
    return options


def _check(options: SamplingOptions) -> None:
    """Raise InvalidRequest for a value that no engine takes."""
    checks = {
        "temperature is at least 0": options.temperature >= 0,
        "top_p is above 0 and at most 1": 0 < options.top_p <= 1,
        "min_p is 0 to 1": 0 <= options.min_p <= 1,
        "max_tokens is at least 1": options.max_tokens is None or options.max_tokens >= 1,
        "max_context_tokens is at least 2": options.max_context_tokens is None
        or options.max_context_tokens >= 2,
    }
    for rule, holds in checks.items():
        if not holds:
            raise InvalidRequest(f"sampling: {rule}", pointer=f"/sampling/{rule.split()[0]}")


def _without_provider(model: str) -> str:
    for prefix in _PROVIDERS:
        if model.startswith(prefix):
            return model.removeprefix(prefix)
    return model
