"""Environments of rollouts outlive their own time to live from the moment that they are opened or taken over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from domain.errors import NotFound
from domain.events import TrajectoryRenewed
from scheduler.runtime.rollouts.environments import KEPT_SECONDS, RolloutEnvironments
from tests.unit.rollout.builders import a_rollout

ROLLOUT = a_rollout("rol_1")


class RecordedCalls:
    """Calls that succeed, with the order in which they are made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        #: Of the trajectory that is prepared.
        self.node: str | None = "n1"

    def native(self, rollout: Any) -> Any:
        return SimpleNamespace(
            open=self._open, fork=self._fork, trajectory=self._trajectory, place=self._place
        )

    async def patiently(self, call: Any) -> Any:
        return await call()

    async def send(self, event: TrajectoryRenewed) -> None:
        assert (event.ttl_seconds, event.only_later) == (KEPT_SECONDS, True)
        self.made.append(f"renew {event.trajectory}")

    async def _open(self, name: str, task: str, **members: Any) -> None:
        self.made.append(f"open {name}")

    async def _fork(self, source: str, names: Any, **members: Any) -> None:
        self.made.append(f"fork {' '.join(names)}")

    async def _trajectory(self, name: str) -> Any:
        if name != "rol_1":
            raise NotFound(name)
        return SimpleNamespace(state="open", node=self.node)

    async def _place(self, name: str) -> None:
        self.made.append(f"place {name}")


def made_by() -> tuple[list[str], RolloutEnvironments]:
    calls: Any = RecordedCalls()
    return calls.made, RolloutEnvironments(calls)


async def test_an_environment_is_renewed_when_it_is_opened() -> None:
    made, environments = made_by()
    await environments.open(ROLLOUT, "rol_1", {"ttl_seconds": 600})
    assert made == ["open rol_1", "renew rol_1"]


async def test_a_fork_is_renewed_when_it_is_made() -> None:
    made, environments = made_by()
    await environments.fork(ROLLOUT, "rol_1", ["rol_1-run"])
    assert made == ["fork rol_1-run", "renew rol_1-run"]


async def test_a_fork_of_what_init_left_untouched_is_placed_first() -> None:
    """A handler whose INIT does nothing in its environment can run all the same."""
    calls: Any = RecordedCalls()
    calls.node = None
    await RolloutEnvironments(calls).fork(ROLLOUT, "rol_1", ["rol_1-run"])
    assert calls.made == ["place rol_1", "fork rol_1-run", "renew rol_1-run"]


async def test_a_successor_renews_what_its_predecessor_opened() -> None:
    made, environments = made_by()
    await environments.take(ROLLOUT)
    assert made == ["renew rol_1", "renew rol_1-eval", "renew rol_1-run", "renew rol_1.stages"]
