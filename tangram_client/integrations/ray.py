"""Ray: actors and tasks that share one client in each process.

    ray.init(runtime_env=runtime_env())

    @ray.remote
    class Rollout:
        def __init__(self, access: ProcessClient) -> None:
            self.access = access

        def act(self, trajectory: str, command: str) -> float | None:
            with self.access.trajectory(trajectory, task="swe") as environment:
                return environment.exec(command, reward="exit_code").reward

A `ProcessClient` is a small value that may be sent to any actor or task; the connections belong to the process
that uses it. It carries no token: each worker reads address and token from its environment, as
`tangram_client.Client` does, and `runtime_env` sets both for a job. Actions of an actor that dies are not
cancelled by that: end a trajectory by its name (`ProcessClient.finish`), or rely on its ``ttl_seconds``.

Ray itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from tangram_client.client import Client, Trajectory
from tangram_client.context import find_context
from tangram_client.errors import NotFoundError
from tangram_client.integrations.clients import process_client


@dataclass(frozen=True)
class ProcessClient:
    """The client of whichever process uses it."""

    #: None: that of the process's environment.
    url: str | None = None
    project: str | None = None

    @property
    def client(self) -> Client:
        """The client of this process; any number of threads and actors may use it at once."""
        return process_client(self.url, None, self.project)

    def trajectory(
        self, trajectory: str, *, task: str, **fields: Any
    ) -> AbstractContextManager[Trajectory]:
        """Open a trajectory, and finish it at the end of the block; `tangram_client.Client.trajectory`."""
        return self.client.trajectory(trajectory, task=task, **fields)

    def finish(self, trajectory: str) -> None:
        """End a trajectory that another process opened; one that is unknown is ignored."""
        with suppress(NotFoundError):
            self.client.finish_trajectory(trajectory)


def runtime_env(
    url: str | None = None, token: str | None = None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return ``base`` as a ``runtime_env`` of Ray with the address and token for all workers of a job.

    Ray stores it in its cluster's control store, and shows it on its dashboard: give the job a token of its own.
    """
    context = find_context(url, token)
    given = dict(base or {})
    variables = {"TANGRAM_URL": ",".join(context.urls)}
    if context.token is not None:
        variables["TANGRAM_TOKEN"] = context.token
    return {**given, "env_vars": {**given.get("env_vars", {}), **variables}}
