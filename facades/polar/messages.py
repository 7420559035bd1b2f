"""Messages of Polar: a task of a trainer, and what it becomes as rollouts.

    {"task_id": "t-1", "instruction": "…", "num_samples": 8, "agent": {"harness": "swe", "model_name": "openai/m", "settings": {…}},
     "runtime": {"image": "swe:1", …}, "evaluator": {…}, "timeout_seconds": 900, "metadata": {"instance_id": "django-1", …}}

Rules
1. Members that we do not know pass. ``metadata`` is the instance, as the handler reads it, with ``instruction`` and ``evaluator``.
2. What cannot be done here is refused, never left out: code by import path, files of the trainer's machine, GPUs, seeds by sample.
3. ``timeout_seconds`` counts from INIT, as in Polar, and here less the waits for leases and actions. ``agent_timeout`` of the metadata is
   the limit of RUN alone.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from contract.rollout_requests import MAX_ROLLOUTS
from domain.errors import InvalidRequest
from facades.door_settings import DoorSettings

DEFAULT_TASK: Final = "polar"
#: Settings of the agent that are sampling parameters.
SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop", "presence_penalty", "frequency_penalty",
)  # fmt: skip
#: Builders of Polar whose traces are those of our segments, or finer than them.
_BUILDERS: Final = frozenset({"", "per_request", "prefix_merging"})
_SEEDS: Final = "eval_sampling_seed_base"
_LABEL_CHARACTERS: Final = 120
_NAME_CHARACTERS: Final = 256


class PolarTask(msgspec.Struct, kw_only=True):
    """Body of ``POST /rollout/task/submit``."""

    task_id: Annotated[str, Meta(min_length=1, max_length=512)]
    instruction: str
    agent: dict[str, Any]
    num_samples: Annotated[int, Meta(ge=1, le=MAX_ROLLOUTS)] = 1
    #: Higher first.
    dispatch_priority: Annotated[int, Meta(ge=0, le=100)] = 0
    #: So many usable sessions end the others.
    early_stop_min_usable_sessions: Annotated[int, Meta(ge=1)] | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] = 600.0
    max_steps: Annotated[int, Meta(ge=1)] | None = None
    runtime: dict[str, Any] | None = None
    builder: dict[str, Any] = {}
    evaluator: dict[str, Any] | None = None
    callback_url: str | None = None
    metadata: dict[str, Any] = {}


class _Prepare(msgspec.Struct):
    """A step of a runtime's preparation."""

    type: str
    command: str | None = None
    cwd: str | None = None


class _Runtime(msgspec.Struct):
    """The members of a runtime that are used here."""

    image: Annotated[str, Meta(min_length=1)]
    prepare: list[_Prepare] = []
    network: str | None = "host"
    allow_internet: bool = True
    memory_mb: Annotated[int, Meta(ge=0)] | None = None
    storage_mb: Annotated[int, Meta(ge=0)] | None = None
    gpus: int | None = 0


def submission(task: PolarTask, settings: DoorSettings) -> dict[str, Any]:
    """Return the members of the rollouts of a task. Raises InvalidRequest."""
    _check(task)
    options, agent = _settings_of(task), task.agent
    sampling: dict[str, Any] = {n: options.pop(n) for n in SAMPLING if n in options}
    if model := str(agent.get("model_name") or ""):
        sampling["model"] = model.partition("/")[2] or model
    if task.max_steps is not None:
        options.setdefault("max_iterations", task.max_steps)
    data = {**task.metadata, "instruction": task.instruction}
    if task.evaluator is not None:
        data["evaluator"] = task.evaluator
    environment, setup = _environment(task, settings)
    if setup:
        data["setup"] = [*_texts(data.get("setup")), *setup]
    members: dict[str, Any] = {
        "task": settings.task,
        "handler": settings.handler or str(agent["harness"]),
        "instances": [{"id": instance_of(task), "data": data}],
        "samples": task.num_samples,
        "group": group_of(task.task_id),
        "sampling": sampling,
        "options": options,
        "limits": _limits(task),
        "priority": task.dispatch_priority,
        "metadata": {"polar": {"task_id": task.task_id}},
    }
    if settings.llm:
        members["llm"] = settings.llm
    if environment:
        members["environment"] = environment
    return members


def group_of(task_id: str) -> str:
    """Return the group of a task's rollouts: its id where a group may have it."""
    if len(task_id) <= _LABEL_CHARACTERS:
        return task_id
    return f"polar-{hashlib.blake2b(task_id.encode(), digest_size=16).hexdigest()}"


def instance_of(task: PolarTask) -> str:
    """Return the name of a task's instance: that of the metadata, else the task's id."""
    for member in ("instance_id", "instance"):
        if isinstance(found := task.metadata.get(member), str | int) and str(found):
            return str(found)[:_NAME_CHARACTERS]
    return task.task_id[:_NAME_CHARACTERS]


def _check(task: PolarTask) -> None:
    """Raise InvalidRequest for what is not possible here."""
    agent, builder = task.agent, str(task.builder.get("strategy") or "")
    if agent.get("import_path") or not isinstance(agent.get("harness"), str):
        raise InvalidRequest(
            "agents are handlers that rollout workers have installed: name one as agent.harness, not by an import path",
            pointer="/agent/harness",
        )
    if builder not in _BUILDERS:
        raise InvalidRequest(
            f"builder {builder!r} is code that does not run here: use prefix_merging",
            pointer="/builder/strategy",
        )
    threshold = task.early_stop_min_usable_sessions
    if threshold is not None and threshold > task.num_samples:
        raise InvalidRequest(
            "early_stop_min_usable_sessions cannot exceed num_samples",
            pointer="/early_stop_min_usable_sessions",
        )
    if task.metadata.get(_SEEDS) is not None:
        raise InvalidRequest(
            "seeds by sample are not supported: submit tasks of one sample, each with agent.settings.seed",
            pointer=f"/metadata/{_SEEDS}",
        )


def _settings_of(task: PolarTask) -> dict[str, Any]:
    settings = task.agent.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise InvalidRequest("agent.settings is an object", pointer="/agent/settings")
    return dict(settings)


def _limits(task: PolarTask) -> dict[str, float]:
    seconds, own = task.timeout_seconds, task.metadata.get("agent_timeout")
    limits = dict.fromkeys(("init_seconds", "run_seconds", "eval_seconds"), seconds)
    if own is None:
        return {**limits, "total_seconds": seconds}
    numeric = isinstance(own, int | float) and not isinstance(own, bool)
    if not numeric or not math.isfinite(own) or own <= 0:
        raise InvalidRequest(
            "metadata.agent_timeout must be a positive finite number",
            pointer="/metadata/agent_timeout",
        )
    return {**limits, "run_seconds": float(own)}


def _environment(task: PolarTask, settings: DoorSettings) -> tuple[dict[str, Any], list[str]]:
    """Return the environment of a task, with the door's own members, and the commands that prepare it."""
    if task.runtime is None:
        return dict(settings.environment), []
    try:
        runtime = msgspec.convert(task.runtime, _Runtime)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"runtime: {error}", pointer="/runtime") from None
    if runtime.gpus:
        raise InvalidRequest("environments of rollouts have no GPUs", pointer="/runtime/gpus")
    setup = []
    for step in runtime.prepare:
        if step.type != "exec" or not step.command:
            raise InvalidRequest(
                "files of the trainer's machine do not reach an environment: put them into its image",
                pointer="/runtime/prepare",
            )
        setup.append(
            step.command if step.cwd is None else f"cd {shlex.quote(step.cwd)} && {step.command}"
        )
    online = runtime.allow_internet and runtime.network not in (None, "none")
    found: dict[str, Any] = {"image": runtime.image, "network": "egress" if online else "none"}
    if runtime.memory_mb:
        found["memory_bytes"] = runtime.memory_mb * 1024**2
    if runtime.storage_mb:
        found["disk_bytes"] = runtime.storage_mb * 1024**2
    return {**found, **settings.environment}, setup


def _texts(found: Any) -> list[str]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidRequest("metadata.setup is a list of commands", pointer="/metadata/setup")
    return found
