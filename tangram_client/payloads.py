"""Request bodies of the contract, and functions that build the common ones.

Payloads are plain mappings, so a field that this version does not know can still be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

#: A count (``1``, ``0.1``), feasible counts (``[1, 2, 4]``) or a range (``{"min": 1, "max": 8}``).
Units = float | Sequence[float] | Mapping[str, int]
Kind = Literal["exec", "call", "lease", "noop"]


class OutputPayload(TypedDict, total=False):
    """What is kept of each output stream: ``keep`` is ``head_tail``, ``head`` or ``tail``."""

    limit_bytes: int
    keep: str


class ExecPayload(TypedDict, total=False):
    """A command; ``{units}`` in an argument becomes the granted count of the key resource."""

    command: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: str
    output_limit_bytes: int
    output: OutputPayload
    rewrite: str | None
    session: str
    expect: Mapping[str, Any]
    queue: bool


class EnvironmentPayload(TypedDict, total=False):
    """A trajectory's long-lived sandbox."""

    image: str
    memory_bytes: int
    disk_bytes: int
    network: str
    ttl_seconds: float


#: ``from`` is a word of Python, so it needs this form: where the reward of an action comes from.
RewardPayload = TypedDict(
    "RewardPayload",
    {
        "from": str,
        "path": str,
        "file": str,
        "runner": str,
        #: Path below the workspace → text that no program of the environment can replace.
        "files": Mapping[str, str],
    },
    total=False,
)


class ActionPayload(TypedDict, total=False):
    """An action; ``task`` and ``kind`` are required."""

    task: str
    kind: Kind
    project: str
    trajectory: str
    pool: str
    priority: int
    step: int
    group: str
    family: str
    environment: EnvironmentPayload
    cost: Mapping[str, Units]
    key: str
    duration_seconds: float
    elasticity: Mapping[str, float]
    malleable: bool
    exec: ExecPayload
    call: Mapping[str, Any]
    lease: Mapping[str, float]
    reward: RewardPayload
    timeout_seconds: float
    queue_timeout_seconds: float
    replay_safe: bool
    remaining_actions: int
    metadata: Mapping[str, Any]


def exec_action(
    task: str,
    command: str | Sequence[str],
    *,
    cpu: Units = 1,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    output: OutputPayload | None = None,
    reward: str | RewardPayload | None = None,
    **fields: Any,
) -> ActionPayload:
    """Write a command as an action. A string goes through ``sh -c``, a sequence runs as it is.

    ``reward="exit_code"`` is short for ``{"from": "exit_code"}``, ``reward="pytest"`` for
    ``{"from": "exit_code", "runner": "pytest"}``: only a run in which tests ran has that reward.
    ``fields`` are members of `ActionPayload`; those that are None are left out.
    """
    argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
    spec = _present({"command": argv, "cwd": cwd, "env": env, "stdin": stdin, "output": output})
    rule = reward_rule(reward) if isinstance(reward, str) else reward
    members = {"task": task, "kind": "exec", "cost": {"cpu": cpu}, "exec": spec, "reward": rule}
    return cast("ActionPayload", _present(members | fields))


def session_action(
    task: str,
    trajectory: str,
    session: str,
    command: str | Sequence[str] | None = None,
    *,
    cpu: Units = 1,
    stdin: str | None = None,
    expect: str | None = None,
    expect_input: bool = False,
    queue: bool = False,
    output: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ActionPayload:
    """Write a command in a session as an action. A string is text for its shell, a sequence is quoted.

    Without a command the action continues what the session runs. It ends with the command, or before when the
    pattern ``expect`` shows, or with ``expect_input`` when a program waits for input. ``queue``: wait for the
    command that runs, instead of a refusal. ``fields`` are members of `ActionPayload`.
    """
    words = [command] if isinstance(command, str) else list(command or ())
    wanted = _present({"pattern": expect, "input": expect_input or None})
    work: dict[str, Any] = {
        "command": words,
        "session": session,
        "stdin": stdin,
        "expect": wanted or None,
    }
    work |= {"queue": queue or None, "output": output}
    members = {"task": task, "kind": "exec", "trajectory": trajectory, "cost": {"cpu": cpu}}
    return cast("ActionPayload", _present({**members, "exec": _present(work), **fields}))


def call_action(
    task: str,
    target: str,
    path: str = "/",
    *,
    json: Any = None,
    method: str | None = None,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    stream: bool = False,
    **fields: Any,
) -> ActionPayload:
    """Write a call of a declared API (``api:search``); a GET when there is nothing to send.

    Say ``replay_safe=True`` for what may be asked twice: Tangram then asks again when the API
    refuses or fails. ``stream=True``: its answer can be read while it comes (`Client.stream`).
    ``fields`` are members of `ActionPayload`.
    """
    verb = method or ("GET" if json is None and body is None else "POST")
    call = {"target": target, "method": verb, "path": path, "json": json, "body": body}
    call = _present({**call, "headers": headers, "stream": stream or None})
    return cast("ActionPayload", _present({"task": task, "kind": "call", "call": call} | fields))


def lease_action(
    task: str, cost: Mapping[str, Units], *, ttl_seconds: float = 30.0, **fields: Any
) -> ActionPayload:
    """Write a lease on resources that the trainer uses itself."""
    members = {"task": task, "kind": "lease", "cost": cost, "lease": {"ttl_seconds": ttl_seconds}}
    return cast("ActionPayload", _present(members | fields))


def noop_action(task: str, *, cpu: Units = 1, **fields: Any) -> ActionPayload:
    """Write an action that is granted, touched by a node and released."""
    members = {"task": task, "kind": "noop", "cost": {"cpu": cpu}}
    return cast("ActionPayload", _present(members | fields))


def reward_rule(text: str) -> RewardPayload:
    """Return the rule that ``exit_code``, ``pytest``, ``json:PATH`` or ``junit:FILE`` is short for."""
    source, _, path = text.partition(":")
    if source == "pytest":
        return {"from": "exit_code", "runner": source}
    return {"from": source, "path": path} if path else {"from": source}


def _present(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
