"""Rollouts and backends, as coroutines: the source from which `_sync_rollouts` is generated.

``python -m tests.architecture.sync_client`` writes the blocking twin; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tangram_client import _rollout_calls
from tangram_client._async_files import AsyncSender
from tangram_client._core import ApiCall
from tangram_client._rollout_calls import ChangeResult, RolloutInfo, RolloutPage
from tangram_client.errors import NotFound
from tangram_client.models import Json
from tangram_client.retry import RetryPolicy

T = TypeVar("T")

#: One look at a rollout lasts at most so long; proxies end silent connections after a minute.
LOOK_SECONDS = 30.0


class AsyncPatientSender:
    """A sender with a retry policy of its own."""

    def __init__(self, sender: AsyncSender, retry: RetryPolicy) -> None:
        self._sender = sender
        self._retry = retry

    async def send(self, call: ApiCall[T], *, retry: RetryPolicy | None = None) -> T:
        """Send a call."""
        return await self._sender.send(call, retry=retry or self._retry)

    def download(self, call: ApiCall[Any]) -> AsyncIterator[bytes]:
        """Yield the body of the answer as it arrives."""
        return self._sender.download(call)


class AsyncRolloutCalls:
    """Rollouts of one project; None: the project of the token."""

    def __init__(self, sender: AsyncSender, project: str | None) -> None:
        self._sender = sender
        self._project = project

    def with_retry(self, retry: RetryPolicy) -> AsyncRolloutCalls:
        """Return the same calls with another retry policy, as for a trainer that waits for a server that starts again."""
        return AsyncRolloutCalls(AsyncPatientSender(self._sender, retry), self._project)

    async def submit(
        self,
        task: str,
        handler: str,
        instances: Sequence[Mapping[str, Any]],
        *,
        samples: int = 1,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> list[str]:
        """Submit ``samples`` rollouts of each instance; return their ids, by instance, then by sample.

        An instance has ``id``, ``data`` and ``environment``; ``fields`` as in ``POST /rollouts``.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        payload = {
            "task": task,
            "handler": handler,
            "instances": [dict(each) for each in instances],
            "samples": samples,
            **({} if self._project is None else {"project": self._project}),
            **given,
        }
        return await self._sender.send(_rollout_calls.submit_rollouts(payload, idempotency_key))

    async def get(
        self, rollout: str, *, wait_seconds: float | None = None, tokens: bool = True
    ) -> RolloutInfo:
        """Return a rollout; with a wait, once it is finished or the wait is over. Raises NotFound."""
        call = _rollout_calls.get_rollout(rollout, wait_seconds=wait_seconds, tokens=tokens)
        return await self._sender.send(call)

    async def wait(self, rollout: str, *, tokens: bool = True) -> RolloutInfo:
        """Return a rollout once it is finished. Raises NotFound."""
        while True:
            found = await self.get(rollout, wait_seconds=LOOK_SECONDS, tokens=tokens)
            if found.finished:
                return found

    async def packed(self, rollout: str) -> bytes:
        """Return a rollout as MessagePack, with arrays of tokens as bytes."""
        return await self._sender.send(_rollout_calls.get_packed(rollout))

    async def list(
        self, *, task: str | None = None, group: str | None = None, limit: int = 100
    ) -> list[RolloutInfo]:
        """Return the rollouts that are not finished, by arrival."""
        filters = {"task": task, "group": group, "limit": limit, "project": self._project}
        return await self._sender.send(_rollout_calls.list_rollouts(**filters))

    async def completions(
        self,
        after: str = "",
        *,
        limit: int | None = None,
        wait_seconds: float | None = None,
        tokens: bool = True,
    ) -> RolloutPage:
        """Return finished rollouts after a cursor: ``""`` is the start of their log, ``now`` its end."""
        call = _rollout_calls.rollout_completions(
            after, limit=limit, wait_seconds=wait_seconds, tokens=tokens
        )
        return await self._sender.send(call)

    async def cancel(self, rollout: str, *, reason: str | None = None) -> None:
        """Cancel a rollout, also before it is submitted; may be repeated."""
        await self._sender.send(_rollout_calls.change_rollout(rollout, "cancel", reason))

    async def park(self, rollout: str, *, reason: str | None = None) -> None:
        """Keep a rollout without a lease, from its last turn on."""
        await self._sender.send(_rollout_calls.change_rollout(rollout, "park", reason))

    async def resume(self, rollout: str) -> None:
        """Continue a rollout that is parked."""
        await self._sender.send(_rollout_calls.change_rollout(rollout, "resume", None))

    async def cancel_many(
        self, rollouts: Sequence[str], *, reason: str | None = None
    ) -> Sequence[ChangeResult]:
        """Cancel rollouts, a thousand in a request; return a result for each, in order. May be repeated."""
        return await self._change(rollouts, "cancel", reason)

    async def park_many(
        self, rollouts: Sequence[str], *, reason: str | None = None
    ) -> Sequence[ChangeResult]:
        """Keep rollouts without a lease, a thousand in a request; return a result for each, in order.

        Those of one request are parked together: the worker of one takes no other one of them meanwhile.
        """
        return await self._change(rollouts, "park", reason)

    async def resume_many(self, rollouts: Sequence[str]) -> Sequence[ChangeResult]:
        """Continue rollouts that are parked, a thousand in a request; return a result for each, in order."""
        return await self._change(rollouts, "resume", None)

    async def _change(
        self, rollouts: Sequence[str], verb: str, reason: str | None
    ) -> Sequence[ChangeResult]:
        found: list[ChangeResult] = []
        for first in range(0, len(rollouts), _rollout_calls.MAX_CHANGED):
            part = rollouts[first : first + _rollout_calls.MAX_CHANGED]
            changes = await self._sender.send(_rollout_calls.change_rollouts(part, verb, reason))
            found += changes
        return found

    async def acknowledge(self, rollouts: Sequence[str]) -> Sequence[str]:
        """Have tokens and artefacts of finished rollouts deleted; return those that were finished."""
        answer = await self._sender.send(_rollout_calls.acknowledge_rollouts(rollouts))
        return [str(each) for each in answer["ids"]]

    async def artefact(self, rollout: str, name: str) -> bytes:
        """Return a file that a stage stored. Raises NotFound."""
        return await self._sender.send(_rollout_calls.get_artefact(rollout, name))


class AsyncBackendCalls:
    """Servers of language models, by pool."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def list(self) -> Sequence[Json]:
        """Return the pools, each with its backends."""
        return await self._sender.send(_rollout_calls.list_backends())

    async def add(self, pool: str, address: str, **fields: Any) -> str:
        """Add a backend, or change the one of its name; return the name. ``fields`` as in ``POST /backends``."""
        given = {name: value for name, value in fields.items() if value is not None}
        payload = {"pool": pool, "address": address, **given}
        answer = await self._sender.send(_rollout_calls.put_backend(payload))
        return str(answer["backend"])

    async def remove(self, pool: str, name: str) -> None:
        """Remove a backend; its rollouts sample elsewhere from their next turn on."""
        await self._sender.send(_rollout_calls.remove_backend(pool, name))

    async def drain(self, pool: str, name: str) -> None:
        """Let a backend take no new rollouts."""
        await self._sender.send(_rollout_calls.change_backend(pool, name, "drain"))

    async def resume(self, pool: str, name: str) -> None:
        """Let a drained backend take rollouts again."""
        await self._sender.send(_rollout_calls.change_backend(pool, name, "resume"))

    async def clear(self, pool: str) -> None:
        """Remove all backends of a pool; those added next serve the next weights version."""
        await self._sender.send(_rollout_calls.change_pool(pool, "clear", {}))

    async def forget(self, pool: str) -> None:
        """Forget an empty pool with its weights version; one that rollouts name or that has seats taken stays."""
        await self._sender.send(_rollout_calls.forget_pool(pool))

    async def replace(self, pool: str, addresses: Sequence[str], **fields: Any) -> Sequence[str]:
        """Replace all backends of a pool by these addresses, which serve its next weights version; return their names.

        Rollouts without a backend wait meanwhile, uncounted. After an error, call it again. ``fields`` as in ``POST /backends``.
        """
        with suppress(NotFound):  # of the first call, which makes the pool known
            await self.clear(pool)
        return [await self.add(pool, address, **fields) for address in addresses]

    async def balance(self, pool: str, balance: str) -> None:
        """Choose how rollouts are distributed: ``in_flight`` or ``paper``."""
        await self._sender.send(_rollout_calls.change_pool(pool, "balance", {"balance": balance}))
