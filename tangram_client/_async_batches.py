"""Batches: manifests of finished rollouts, whose rows the ranks of a trainer pull."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tangram_client import _batch_calls
from tangram_client._async_files import AsyncSender
from tangram_client.models import Json


class AsyncBatchCalls:
    """Batches of one project; None: the project of the token."""

    def __init__(self, sender: AsyncSender, project: str | None, url: str) -> None:
        """``url``: of Tangram, for ranks that reach no rollout worker."""
        self._sender = sender
        self._project = project
        self._url = url

    async def create(
        self,
        *,
        layout: Mapping[str, Any],
        rollouts: Sequence[str] | None = None,
        group: str | Sequence[str] | None = None,
        task: str | None = None,
        leave_out: bool = False,
        expires_seconds: int | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Return the manifest of a batch of finished rollouts, by their ids or their groups; `dispatcher.batches.pull` reads it.

        ``layout``: ``{"ranks": N}``, or as in ``POST /batches``. ``leave_out``: rollouts that cannot train are left out. Raises Conflict, whose
        problem names each of them, otherwise; NotFound, InvalidRequestError.
        """
        given = {
            "layout": dict(layout),
            "rollouts": None if rollouts is None else list(rollouts),
            "group": group if group is None or isinstance(group, str) else list(group),
            "task": task,
            "project": self._project,
            "leave_out": leave_out or None,
            "expires_seconds": expires_seconds,
        }
        payload = {name: value for name, value in given.items() if value is not None}
        call = _batch_calls.create_batch(payload, idempotency_key)
        return self._reached(await self._sender.send(call))

    async def get(self, batch: str, *, rank: int | None = None) -> dict[str, Any]:
        """Return the manifest of a batch, with the workers that live now; ``rank``: with its token alone.

        Raises NotFound, Gone once it has expired.
        """
        call = _batch_calls.get_batch(batch, rank, self._project)
        return self._reached(await self._sender.send(call))

    async def list(self, *, limit: int | None = None) -> list[Json]:
        """Return batches, newest first, with what was pulled; expired ones for a day."""
        return await self._sender.send(_batch_calls.list_batches(limit, self._project))

    def _reached(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return a manifest with the address of Tangram."""
        return {**manifest, "gateway": self._url}
