"""Settings that a deployment gives the actions of a door, in headers that the protocol's clients do not know.

`tangram door` adds them to each request, and so does any proxy in front of a door:

    X-Tangram-Task          task of the actions
    X-Tangram-Cpu           cores of each command: a count, or counts as 1,2,4
    X-Tangram-Handler       handler of rollouts, instead of the one that the client names
    X-Tangram-Llm           pool of backends that rollouts sample from, or ``fleet:NAME``
    X-Tangram-Environment   members of the environment as JSON: ``{"image": "python:3.12", "network": "egress"}``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest
from scheduler.runtime.gateway.http import HttpRequest

TASK: Final = b"x-tangram-task"
CPU: Final = b"x-tangram-cpu"
ENVIRONMENT: Final = b"x-tangram-environment"
HANDLER: Final = b"x-tangram-handler"
LLM: Final = b"x-tangram-llm"

_environment = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class DoorSettings:
    """What the actions or rollouts of one request have beside what their client sends."""

    task: str
    cpu: list[float]
    environment: dict[str, Any]
    #: Of rollouts; empty: what the client names, and no pool.
    handler: str = ""
    llm: str = ""

    @classmethod
    def of(cls, request: HttpRequest, task: str) -> DoorSettings:
        """Return the settings of a request; ``task``: the default. Raises InvalidRequest."""
        environment = request.header(ENVIRONMENT)
        try:
            cpu = [float(count) for count in (request.header(CPU) or "1").split(",")]
            declared = _environment.decode(environment.encode()) if environment else {}
        except ValueError as error:  # of msgspec, too
            raise InvalidRequest(
                f"X-Tangram-Cpu is a count or counts, X-Tangram-Environment a JSON object: {error}"
            ) from None
        return cls(
            request.header(TASK) or task,
            cpu,
            declared,
            request.header(HANDLER),
            request.header(LLM),
        )

    def action(self, command: list[str], **members: Any) -> dict[str, Any]:
        """Return the members of an action; those of `ExecSpec` are given as ``exec``."""
        work = {"command": command, **members.pop("exec", {})}
        return {
            "task": self.task, "kind": "exec", "cost": {"cpu": self.cpu}, "exec": work, **members,
        }  # fmt: skip
