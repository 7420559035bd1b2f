"""The client for programs that block.

    with Client() as client, client.trajectory("trj-1", task="swe") as trajectory:
        trajectory.put("fix.patch", patch)
        test = trajectory.exec("git apply fix.patch && pytest -q", cpu=[1, 2, 4],
                               reward="exit_code", timeout_seconds=600)
        print(test.reward, test.timing.act_seconds)

One client may be used from many threads.
"""

from __future__ import annotations

from typing import Self

from tangram_client._sync_batches import BatchCalls
from tangram_client._sync_calls import AnyAction, SyncCalls, Trajectory
from tangram_client._sync_fleets import FleetCalls
from tangram_client._sync_rollouts import BackendCalls, RolloutCalls
from tangram_client._sync_selectors import SelectorCalls
from tangram_client._sync_views import ViewCalls

__all__ = ["AnyAction", "Client", "Trajectory"]


class Client(SyncCalls):
    """The client of one Tangram. Without arguments: the one that `context.find_context` finds."""

    @property
    def rollouts(self) -> RolloutCalls:
        """The rollouts of the client's project."""
        return RolloutCalls(self, self._project)

    @property
    def backends(self) -> BackendCalls:
        """The servers of language models."""
        return BackendCalls(self)

    @property
    def batches(self) -> BatchCalls:
        """Batches of finished rollouts for the ranks of a trainer, of the client's project."""
        return BatchCalls(self, self._project, self.url)

    @property
    def fleets(self) -> FleetCalls:
        """Fleets of language models; trajectories are of the client's project."""
        return FleetCalls(self, self._project)

    @property
    def selectors(self) -> SelectorCalls:
        """Selectors of parallelism, which are of all projects."""
        return SelectorCalls(self)

    @property
    def views(self) -> ViewCalls:
        """Saved views of the explorer; new ones are of the client's project."""
        return ViewCalls(self, self._project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
