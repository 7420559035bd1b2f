"""Engines whose server stays, and puts its weights into host memory to sleep: ``vllm``, ``sglang``, ``torch``.

Evicting frees GPU memory and keeps the process; restoring wakes it, weights first and then the cache of
keys and values, and asks the warm-up. A server that cannot be put to sleep or woken is ended, and the
next start is a cold one. A request never reaches one that sleeps: there is no address while it does.

vLLM's and SGLang's ways are written against the engines' own descriptions (vLLM: sleep mode, development
endpoints; SGLang: memory saver) and tested against fakes of them (`tests/sleeping_engine.py`), not
against the engines. The server of ``torch`` is our own (`managers.gpu.torch_worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx
from msgspec.structs import replace

from domain.services import Engine, GpuService, ServiceEvent
from managers.gpu.engines import AnswersChanged, EngineFailed, OutOfMemory, failed_with
from managers.gpu.engines.process import ProcessServer, loopback_client

_WORDS_CHARACTERS: Final = 1000
#: What our own worker says when weights or answers are not those of before.
_CHANGED: Final = "answers_changed"


class Step(NamedTuple):
    """One request to an engine; its answer must be 2xx."""

    path: str
    body: dict[str, Any] | None = None


class Ways(NamedTuple):
    """How an engine is started, put to sleep, and woken."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    sleep: Sequence[Step]
    wake: Sequence[Step]


WAYS: Final = {
    Engine.VLLM: Ways(
        ("vllm", "serve", "{source}", "--host", "127.0.0.1", "--port", "{port}",
         "--tensor-parallel-size", "{gpus}", "--enable-sleep-mode"),
        {"VLLM_SERVER_DEV_MODE": "1"},
        # Level 1: weights go to host memory, the cache is dropped.
        (Step("/sleep?level=1&mode=wait"),),
        (Step("/wake_up?tags=weights"), Step("/wake_up?tags=kv_cache")),
    ),
    Engine.SGLANG: Ways(
        ("python3", "-m", "sglang.launch_server", "--model-path", "{source}",
         "--host", "127.0.0.1", "--port", "{port}", "--tp", "{gpus}",
         "--enable-memory-saver", "--enable-weights-cpu-backup"),
        {},
        (Step("/pause_generation", {}), Step("/flush_cache"),
         Step("/release_memory_occupation", {"tags": ["weights", "kv_cache"]})),
        (Step("/resume_memory_occupation", {"tags": ["weights"]}),
         Step("/resume_memory_occupation", {"tags": ["kv_cache"]}),
         Step("/continue_generation", {})),
    ),
    Engine.TORCH: Ways(
        ("{python}", "-m", "managers.gpu.torch_worker", "--port", "{port}",
         "--source", "{source}", "--memory-bytes", "{memory_bytes}", "--at-once", "{at_once}",
         "--gpus", "{gpus}"),
        {},
        (Step("/tangram/release"),),
        (Step("/tangram/restore"),),
    ),
}  # fmt: skip


class SleepingServer(ProcessServer):
    """One server of such an engine on one chunk."""

    #: Where it is while it sleeps; empty while it does not.
    _asleep_at = ""

    def _completed(self, service: GpuService) -> GpuService:
        """Add its engine's usual command where the service names none."""
        self._ways = WAYS[service.engine]
        command = service.command or self._ways.command
        return replace(service, command=command, env={**self._ways.env, **service.env})

    async def restore(self) -> None:
        """Wake it, or start it when there is nothing to wake. Raises EngineFailed."""
        url, self._asleep_at = self._asleep_at, ""
        if not url or not await self._woken(url):
            await super().restore()

    async def prepare(self) -> None:
        """Start it and put it to sleep, unless it is there. Raises EngineFailed."""
        if not self._running:
            self._asleep_at = await self._launched(self._prepared)

    async def _prepared(self, client: httpx.AsyncClient) -> None:
        """Wait until what was started answers, and put it to sleep."""
        await self._warm(client)
        await self._take(client, self._ways.sleep)

    async def _woken(self, url: str) -> bool:
        """Wake it; False when it refuses, or is not there any more, and was ended."""
        limit = self._service.restore_timeout_seconds
        try:
            async with asyncio.timeout(limit), loopback_client(url) as client:
                await self._take(client, self._ways.wake)
                await self._warm(client)
        except TimeoutError:
            await self.close()
            raise EngineFailed(f"it was not awake within {limit:g} s") from None
        except (AnswersChanged, OutOfMemory):  # starting it anew would hide that, or fail alike
            await self.close()
            raise
        except EngineFailed:
            await self.close()
            return False
        except BaseException:
            await self.close()
            raise
        self._url = url
        return True

    async def evict(self) -> ServiceEvent:
        """Put it to sleep. Raises EngineFailed; it is to be closed then."""
        if not self.alive:
            if self._asleep_at and self._running:
                return ServiceEvent.EVICTED
            return await super().evict()
        url, self._url = self._url, ""
        limit = self._service.restore_timeout_seconds
        try:
            async with asyncio.timeout(limit), loopback_client(url) as client:
                await self._take(client, self._ways.sleep)
        except TimeoutError:
            raise EngineFailed(f"it did not sleep within {limit:g} s") from None
        self._asleep_at = url
        return ServiceEvent.EVICTED

    async def close(self) -> None:
        """End everything in its session, asleep or awake."""
        self._asleep_at = ""
        await super().close()

    async def _take(self, client: httpx.AsyncClient, steps: Sequence[Step]) -> None:
        for step in steps:
            try:
                answer = await client.post(step.path, json=step.body)
            except httpx.TransportError as error:
                raise EngineFailed(f"{step.path} was not answered: {error!r}") from None
            if not answer.is_success:
                words = answer.text[:_WORDS_CHARACTERS].strip()
                said = f"{step.path} was answered with {answer.status_code}: {words}"
                raise AnswersChanged(said) if _CHANGED in words else failed_with(said)
