"""Trajectories of a fleet, without a gateway: their requests, and the reports of the gateway that would hold them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from domain.action import Outcome
from domain.decisions import Grant
from domain.events import ActionFinished, ActionStarted, ActionSubmitted, TrajectoryFinished
from domain.fleets import TokenUsage
from tests.builders import a_generation
from tests.integration.runtime.keeper_rig import KeeperRig


class Trajectories:
    """What trainers and gateways append."""

    def __init__(self, rig: KeeperRig) -> None:
        self._rig = rig
        self._names = count()

    async def generate(self, tokens: dict[str, int]) -> dict[str, Grant]:
        """Let each trajectory have an answer of so many tokens; return the grants."""
        names = {f"g{next(self._names)}": each for each in tokens}
        self._rig.tell(
            *(
                ActionSubmitted(action=a_generation(name, each, group=each))
                for name, each in names.items()
            )
        )
        grants = await self._rig.until_journalled(lambda facts: _grants(facts, names))
        for name, each in names.items():
            usage = TokenUsage(100, tokens[each])
            done = ActionFinished(
                action_id=grants[name].action_id, node="", outcome=Outcome.COMPLETED, usage=usage
            )
            self._rig.tell(ActionStarted(action_id=grants[name].action_id, node=""), done)
        return {each: grants[name] for name, each in names.items()}

    def finish(self, names: Iterable[str]) -> None:
        """Finish trajectories."""
        self._rig.tell(*(TrajectoryFinished(project="default", trajectory=each) for each in names))


def _grants(facts: list[Any], names: Iterable[str]) -> dict[str, Grant] | None:
    found = {each.action_id: each for each in facts if isinstance(each, Grant)}
    wanted = set(names)
    return {str(k): v for k, v in found.items()} if wanted <= found.keys() else None
