"""Requests of ProRL Agent's clients: their bodies, and what a job becomes as a rollout.

    {"instance": {"data_source": "swebench", "instance_id": …, "trajectory_id": 3, …},
     "sampling_params": {"model": "hosted_vllm/…", "max_iterations": 35, …}, "job_id": null}

Rules
1. Members that we do not know pass: of the instance to the handler, of ``sampling_params`` to the handler and the engine.
2. `AGENT_OPTIONS` are taken out of ``sampling_params``, as ProRL's server does, and are options of the handler.
3. ``NaN``, which Python's clients write for an absent value, is null.
4. Of rows of verl's data sets, the handlers of questions get the text of ``prompt`` and the ``ground_truth`` of ``reward_model``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.backends import own_pool
from domain.errors import InvalidRequest
from scheduler.runtime.gateway.http import encode_json

#: Members of ``sampling_params`` that configure the agent.
AGENT_OPTIONS: Final = (
    "max_iterations", "ensure_thinking_end_properly", "strict_loop_detector", "enable_vision", "enable_a11y_tree",
)  # fmt: skip
DEFAULT_SOURCE: Final = "swebench"
#: Data source → handler (entry point ``tangram.rollouts``). Any other source is the name of a handler.
HANDLERS: Final = {
    "swebench": "swe",
    "deepscaler": "math",
    **dict.fromkeys(("deepcoder", "codecontests", "apps", "codeforces", "taco"), "code"),
}
_CODE_PREFIX: Final = "deepcoder"
#: Tools of the handlers of questions, as ProRL's agents for them have.
TOOLS: Final = {
    "math": ["python", "think"],
    "code": ["python", "bash", "editor", "think"],
    "stem": ["python", "think"],
}
#: Handlers whose instances need an environment, also where the door has no settings for it.
_WITH_ENVIRONMENT: Final = frozenset({"swe", *TOOLS})
_NAME_CHARACTERS: Final = 256
_LABEL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:+-")
_LABEL_CHARACTERS: Final = 48
#: In the image of an environment: the name of the instance.
_PLACEHOLDER: Final = "{instance_id}"


class JobRequest(msgspec.Struct):
    """Body of ``POST /process``."""

    instance: dict[str, Any]
    sampling_params: dict[str, Any]
    job_id: str | None = None


class JobCancelRequest(msgspec.Struct):
    """Body of ``POST /cancel``."""

    job_id: str


class LlmServerRequest(msgspec.Struct):
    """Body of ``POST /add_llm_server``."""

    address: str


def read(kind: type[Any], body: bytes) -> Any:
    """Return a body as ``kind``; ``NaN`` is null. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), code="invalid_body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # NaN and Infinity are JSON for Python alone
        return msgspec.convert(json.loads(body, parse_constant=lambda _: None), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), code="invalid_body") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}", code="invalid_body") from None


def source_of(instance: Mapping[str, Any]) -> str:
    """Return the data source of an instance. Raises InvalidRequest."""
    found = instance.get("data_source", DEFAULT_SOURCE)
    if not isinstance(found, str) or not found:
        raise InvalidRequest("instance.data_source is a text", pointer="/instance/data_source")
    return found


def handler_of(source: str) -> str:
    """Return the handler of a data source."""
    if source.startswith(_CODE_PREFIX):
        return HANDLERS[_CODE_PREFIX]
    return HANDLERS.get(source, source)


def instance_name(instance: Mapping[str, Any]) -> str:
    """Return the name of an instance: its ``instance_id``, else what ProRL makes of its source and ``extra_info``."""
    stated = instance.get("instance_id")
    name = str(stated) if isinstance(stated, str | int) else ""
    if not name:
        extra = instance.get("extra_info")
        known = extra if isinstance(extra, Mapping) else {}
        parts = [known.get(member, "unknown") for member in ("name", "split", "index")]
        name = "_".join(map(str, [instance.get("data_source", "unknown"), *parts]))
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - 33]}-{digest_of(name).hex()}"


def trajectory_of(instance: Mapping[str, Any]) -> int | str | None:
    """Return the trajectory's id as the client wrote it. Raises InvalidRequest."""
    found = instance.get("trajectory_id")
    if isinstance(found, float) and found.is_integer():  # pandas makes floats of integers
        return int(found)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | str)):
        raise InvalidRequest(
            "instance.trajectory_id is an integer or a text", pointer="/instance/trajectory_id"
        )
    return found


def digest_of(*parts: Any) -> bytes:
    """Return 16 bytes that are equal for equal values."""
    text = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(text, digest_size=16).digest()


def pool_of(project: str, task: str) -> str:
    """Return the pool of the LLM servers that the clients of a task add: one of the project's own."""
    fits = set(task) <= _LABEL and len(task) <= _LABEL_CHARACTERS
    return own_pool(project, f"prorl.{task if fits else digest_of(task).hex()}")


def submission(
    asked: JobRequest,
    *,
    session: str,
    task: str,
    pool: str,
    handler: str = "",
    environment: Mapping[str, Any],
    seconds: float | None,
) -> dict[str, Any]:
    """Return the members of the rollout of a job; ``handler``: instead of the data source's. Raises InvalidRequest."""
    instance = asked.instance
    handler, name = handler or handler_of(source_of(instance)), instance_name(instance)
    options: dict[str, Any] = {
        key: asked.sampling_params[key] for key in AGENT_OPTIONS if key in asked.sampling_params
    }
    sampling = {key: value for key, value in asked.sampling_params.items() if key not in options}
    job = {"session": session, "trajectory_id": trajectory_of(instance), "job_id": asked.job_id}
    if handler in TOOLS:
        instance = _question(instance)
        options["tools"] = TOOLS[handler]
    members: dict[str, Any] = {
        "task": task,
        "handler": handler,
        "instances": [{"id": name, "data": instance}],
        "llm": pool,
        "sampling": sampling,
        "options": options,
        "group": f"prorl-{digest_of(session, name).hex()}",
        "metadata": {"prorl": job},
    }
    if environment or handler in _WITH_ENVIRONMENT:
        members["environment"] = _environment(environment, name)
    if seconds is not None:
        limits = ("init_seconds", "run_seconds", "eval_seconds", "total_seconds")
        members["limits"] = dict.fromkeys(limits, seconds)
    return members


def request_digest(session: str, asked: JobRequest) -> bytes:
    """Return what is equal for equal jobs of a session."""
    return digest_of(session, msgspec.Raw(encode_json(asked)))


def _question(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance with the text of its prompt and its right answer as members, where it is a row of verl's."""
    found = dict(instance)
    asked = _from_json(instance.get("prompt"))
    if isinstance(asked, list) and asked and isinstance(asked[0], Mapping):
        found["prompt"] = asked[0].get("content")
    rule = _from_json(instance.get("reward_model"))
    if isinstance(rule, Mapping) and "ground_truth" in rule:
        found.setdefault("ground_truth", rule["ground_truth"])
    return found


def _from_json(value: Any) -> Any:
    """Return what a text of JSON has; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _environment(declared: Mapping[str, Any], instance: str) -> dict[str, Any]:
    found = dict(declared)
    if isinstance(image := found.get("image"), str) and _PLACEHOLDER in image:
        found["image"] = image.replace(_PLACEHOLDER, instance.lower().replace("__", "_s_"))
    return found
