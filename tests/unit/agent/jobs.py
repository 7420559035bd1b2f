"""A job whose actions end as a test says, for tests of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from domain.rollouts import Stage
from rollout.core.calls import call_key
from rollout.core.records import RolloutRequest
from rollout.worker.remote_job import RemoteJob
from tests.unit.rollout.builders import a_rollout

#: From the members of an action to its outcome and the members of its result.
Script = Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]]


class ScriptedJob(RemoteJob):
    """A rollout in RUN. Keeps what its tools asked for."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._answer, a_rollout(), 1, RolloutRequest(), [])
        self.begin(Stage.RUN, None)
        self.script = script
        #: Name of each call → the members of its action.
        self.called: dict[str, dict[str, Any]] = {}
        self.opened: list[tuple[str, dict[str, Any]]] = []

    async def _answer(self, method: str, name: str, members: dict[str, Any]) -> Any:
        if method == "open_session":
            self.opened.append((name, members))
            return None
        assert name not in self.called, "a key names one call"
        self.called[name] = members
        outcome, result = self.script(members)
        end = {
            "id": f"act_{len(self.called)}", "outcome": outcome, "result": result, "reward": None,
            "detail": result.pop("detail", ""), "queue_seconds": 0.0, "execution_seconds": 0.0,
        }  # fmt: skip
        key = call_key(self.rollout.id, 0, Stage.RUN, name)
        return {"key": key, "end": end, "new": True}
