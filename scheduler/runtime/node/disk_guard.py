"""Disk guard of a node: keeps room for Redis, the database and the actions of well-behaved trajectories.

Theory of operation. The guard reads the free space of all file systems that this machine's part of Tangram
uses (`managers.common.disk_space` has the levels). While it is short, new work is refused: the scheduler is
asked to grant nothing here, and orders that are on their way are returned as never started. When a disk is
full, the environment that grew most is ended and its files are deleted, again and again until there is room.
All of this is local: Redis may have ended because the disk is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from contract.machine_facts import DiskFacts
from domain.ports import DiskUsing, EnvironmentDisk
from managers.common.disk_space import (
    DiskFloors,
    DiskJudge,
    DiskLevel,
    DiskSpace,
    DiskVerdict,
    largest_writer,
    read_space,
)
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

_CALM_SECONDS: Final = 1.0
#: With much room the pause is what a writer of `_FASTEST` bytes a second needs to come near a floor, at most this.
_LATEST_SECONDS: Final = 5.0
_FASTEST: Final = 4 * 2**30
#: Between two looks while a disk is near a floor: a fast writer fills the rest of a small disk in a second.
_NEAR_SECONDS: Final = 0.1


class DiskGuard:
    """Watches the disks of one node."""

    def __init__(
        self,
        folders: Sequence[Path],
        users: Sequence[DiskUsing],
        floors: DiskFloors,
        refuses: Callable[[str], None],
    ) -> None:
        """``refuses`` is called with the reason when new work is refused, and with "" when it is taken."""
        self._folders = folders
        self._users = users
        self._judge = DiskJudge(floors)
        self._refuses = refuses
        self._is_helpless = False
        #: Why new work is refused; empty while it is not.
        self.refusal = ""
        self._spaces: list[DiskSpace] = []

    def disk_facts(self) -> tuple[DiskFacts, ...]:
        """Return the file systems as they were seen last."""
        return tuple(
            DiskFacts(
                each.path, each.free_bytes, each.total_bytes, int(self._judge.floor_bytes(each))
            )
            for each in self._spaces
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        while keep_running():
            pause = _NEAR_SECONDS
            try:
                pause = await self.look()
            except OSError as error:
                log.warning("the disks cannot be watched, and are looked at again: %s", error)
            await asyncio.sleep(pause)

    async def look(self) -> float:
        """Look at the disks once and do what they demand; return the pause until the next look."""
        folders = [*self._folders, *(each for user in self._users for each in user.disk_folders())]
        spaces = self._spaces = await asyncio.to_thread(read_space, folders)
        verdict = self._judge.judge(spaces)
        self._announce(verdict)
        if verdict.level is DiskLevel.FULL:
            await self._make_room(verdict.reason)
        elif verdict.level is DiskLevel.FREE:
            self._is_helpless = False
            for user in self._users:
                user.disk_is_free()
        if verdict.level is not DiskLevel.FREE or self._judge.is_near(spaces):
            return _NEAR_SECONDS
        return min(_LATEST_SECONDS, max(_CALM_SECONDS, self._judge.room_bytes(spaces) / _FASTEST))

    def _announce(self, verdict: DiskVerdict) -> None:
        """Refuse new work, or take it again, when that changes."""
        if bool(verdict.reason) == bool(self.refusal):
            return
        self.refusal = verdict.reason
        if verdict.reason:
            log.warning("new work is refused: %s", verdict.reason)
        else:
            log.warning("the disks have room again: new work is taken")
        self._refuses(verdict.reason)

    async def _make_room(self, reason: str) -> None:
        """End the environment that grew most."""
        found: dict[EnvironmentDisk, DiskUsing] = {}
        for user in self._users:
            found |= dict.fromkeys(await user.disk_usage(), user)
        writer = largest_writer(found)
        if writer is None:
            if not self._is_helpless:
                log.error("%s, and no environment here has grown: delete files by hand", reason)
            self._is_helpless = True
            return
        why = (
            f"{reason}; this environment grew most, by {writer.grown_bytes} bytes to"
            f" {writer.used_bytes}, so it was ended and its files were deleted"
        )
        log.error("environment %s is ended: %s", writer.name, why)
        await found[writer].clear_environment(writer.name, why)
