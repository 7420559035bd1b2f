"""Rollouts and backends as native calls of facades: submit, wait, turns, cancel, and a project's own pool of backends.

    rollouts = NativeRollouts(port.native(request, principal))
    made = await rollouts.submit({"task": "grpo", "handler": "swe", "instances": [{"id": "i-1"}]}, key="job/7")
    view = await rollouts.finished(made[0].id)

The rules of `NativeCalls` hold: each call passes the checks of its native route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from contract.rollout_requests import MAX_CHANGED
from contract.rollout_routes import MAX_LISTED
from contract.rollout_status import BackendStatus
from contract.rollout_views import (
    AcceptedRollout,
    AcceptedRollouts,
    BackendPools,
    RolloutList,
    RolloutView,
)
from domain.backends import owner_of
from domain.errors import Conflict, NotFound
from scheduler.runtime.gateway.door_keys import DoorKey
from scheduler.runtime.gateway.native_calls import NativeCalls

#: Longest wait of one native request; longer ones repeat it.
_WAIT_SECONDS: Final = 60.0


class NativeRollouts:
    """The calls of rollouts for one request of a client."""

    def __init__(self, native: NativeCalls) -> None:
        self.native = native

    async def submit(
        self, members: Mapping[str, Any], *, key: str = "", digest: bytes = b""
    ) -> list[AcceptedRollout]:
        """Submit rollouts; ``members`` as in `RolloutsRequest`.

        ``key``: a repetition of the door gets the rollouts of the first request, and raises Conflict with another
        ``digest`` (16 bytes). Raises InvalidRequest, NotFound, CapacityError.
        """
        named = DoorKey(self.native.door, key, digest) if key else None
        body = self.native.owned(members)
        answer = await self.native.call("rollouts_submit", body=body, key=named)
        return msgspec.json.decode(answer.content, type=AcceptedRollouts).rollouts

    async def remembered(self, key: str) -> list[AcceptedRollout]:
        """Return the rollouts that were submitted with a key of this door; none for an unknown one."""
        found = await self.native.remembered(key)
        return [] if found is None else msgspec.json.decode(found, type=AcceptedRollouts).rollouts

    async def get(self, rollout: str, seconds: float = 0.0) -> RolloutView:
        """Return a rollout without tokens, waiting up to ``seconds`` for its end. Raises NotFound, ClientGone."""
        query = {"wait": f"{min(seconds, _WAIT_SECONDS):g}", "segments": "false"}
        answer = await self.native.call("rollouts_retrieve", rollout, query=query)
        return msgspec.json.decode(answer.content, type=RolloutView)

    async def finished(self, rollout: str) -> RolloutView:
        """Return a rollout once it is finished. Raises NotFound, Unavailable, ClientGone."""
        while (view := await self.get(rollout, _WAIT_SECONDS)).outcome is None:
            pass
        return view

    async def turns(self, rollout: str) -> bytes:
        """Return the turns of a rollout as JSON (`RolloutTurns`). Raises NotFound when its log is gone."""
        return (await self.native.call("rollouts_turns", rollout)).content

    async def artefact(self, rollout: str, name: str) -> bytes:
        """Return a file that a stage stored. Raises NotFound."""
        return (await self.native.call("rollouts_artefact", rollout, name)).content

    async def cancel(self, rollout: str, reason: str) -> None:
        """Cancel a rollout; a finished one is not changed. Raises NotFound."""
        await self.native.call("rollouts_cancel", rollout, body={"reason": reason})

    async def cancel_all(self, rollouts: Iterable[str], reason: str) -> None:
        """Cancel rollouts that may have ended, a thousand in a request. Raises Unavailable."""
        names = list(rollouts)
        for first in range(0, len(names), MAX_CHANGED):
            body = {"ids": names[first : first + MAX_CHANGED], "reason": reason}
            await self.native.call("rollouts_cancel_many", body=body)

    async def acknowledge(self, rollouts: Sequence[str]) -> None:
        """Have tokens and artefacts of finished rollouts deleted."""
        await self.native.call("rollouts_acknowledge", body={"ids": list(rollouts)})

    async def live(self, task: str) -> RolloutList:
        """Return the first `MAX_LISTED` unfinished rollouts of a task that this door submitted."""
        query = {"task": task, "door": self.native.door, "limit": str(MAX_LISTED)}
        answer = await self.native.call("rollouts_list", query=query)
        return msgspec.json.decode(answer.content, type=RolloutList)

    # Backends

    async def backends(self, pool: str) -> list[BackendStatus]:
        """Return the backends of a pool; none for an unknown one."""
        answer = await self.native.call("backends_list")
        pools = msgspec.json.decode(answer.content, type=BackendPools).pools
        return next((each.backends for each in pools if each.pool == pool), [])

    async def add_backend(
        self,
        pool: str,
        address: str,
        in_use: Callable[[], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        """Add a backend to a pool, or leave the one at ``address`` as it is.

        ``in_use``: returns the pools that are used now. Where it is given and there is no room for another pool, the empty ones that
        this door made in the project (``DOOR.…@PROJECT``) and that are not used are forgotten. Raises InvalidRequest, Conflict,
        HttpError 403.
        """
        put = partial(self.native.call, "backends_put", body={"pool": pool, "address": address})
        try:
            await put()
        except Conflict:
            if in_use is None:
                raise
            await self._forget_pools(owner_of(pool), {pool, *await in_use()})
            await put()

    async def _forget_pools(self, project: str, kept: Collection[str]) -> None:
        answer = await self.native.call("backends_list")
        for each in msgspec.json.decode(answer.content, type=BackendPools).pools:
            is_made = (
                each.pool.startswith(f"{self.native.door}.") and owner_of(each.pool) == project
            )
            if project and is_made and not each.backends and each.pool not in kept:
                with suppress(Conflict, NotFound):
                    await self.native.call("backends_forget", each.pool)

    async def clear_backends(self, pool: str) -> None:
        """Remove the backends of a pool; an unknown one has none. Raises HttpError 403."""
        with suppress(NotFound):
            await self.native.call("backends_clear", pool)
