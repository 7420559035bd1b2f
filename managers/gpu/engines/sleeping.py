"""Engines with a sleep mode, whose server keeps its weights in host memory: ``vllm``, ``sglang``, ``torch``.

Evicting frees GPU memory and keeps the process; restoring wakes it, weights first and then the cache of
keys and values, and requests the warm-up. A server that cannot be put to sleep or woken is ended, and
the next start is a cold one. A sleeping server gets no requests: it has no address.

The requests to vLLM and SGLang follow the engines' own documentation (vLLM: sleep mode, development
endpoints; SGLang: memory saver) and are tested against fakes (`tests/sleeping_engine.py`), not against
the engines. The server of ``torch`` is our own (`managers.gpu.torch_worker`). It runs under the
interpreter that the service declares, which has torch and needs nothing of ours (`torch_library`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx
from msgspec.structs import replace

from domain.services import Engine, GpuService, ServiceEvent, WarmUp
from managers.gpu.engines import AnswersChanged, EngineFailed, OutOfMemory, failed_with
from managers.gpu.engines.process import ProcessServer, loopback_client
from managers.gpu.engines.torch_library import link_torch_worker, with_torch_worker

_WORDS_CHARACTERS: Final = 1000
#: Error kind of our own worker when weights or answers are not those of before.
_CHANGED: Final = "answers_changed"


class EngineRequest(NamedTuple):
    """One request to an engine; its answer must be 2xx."""

    path: str
    body: dict[str, Any] | None = None


class EngineCommands(NamedTuple):
    """The command of an engine, and its requests for sleep and wake-up."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    sleep: Sequence[EngineRequest]
    wake: Sequence[EngineRequest]


COMMANDS: Final = {
    Engine.VLLM: EngineCommands(
        ("vllm", "serve", "{source}", "--host", "127.0.0.1", "--port", "{port}",
         "--tensor-parallel-size", "{gpus}", "--enable-sleep-mode"),
        {"VLLM_SERVER_DEV_MODE": "1"},
        # Level 1: weights go to host memory, the cache is dropped.
        (EngineRequest("/sleep?level=1&mode=wait"),),
        (EngineRequest("/wake_up?tags=weights"), EngineRequest("/wake_up?tags=kv_cache")),
    ),
    Engine.SGLANG: EngineCommands(
        ("python3", "-m", "sglang.launch_server", "--model-path", "{source}",
         "--host", "127.0.0.1", "--port", "{port}", "--tp", "{gpus}",
         "--enable-memory-saver", "--enable-weights-cpu-backup"),
        {},
        (EngineRequest("/pause_generation", {}), EngineRequest("/flush_cache"),
         EngineRequest("/release_memory_occupation", {"tags": ["weights", "kv_cache"]})),
        (EngineRequest("/resume_memory_occupation", {"tags": ["weights"]}),
         EngineRequest("/resume_memory_occupation", {"tags": ["kv_cache"]}),
         EngineRequest("/continue_generation", {})),
    ),
    Engine.TORCH: EngineCommands(
        ("{python}", "-m", "managers.gpu.torch_worker", "--port", "{port}",
         "--source", "{source}", "--memory-bytes", "{memory_bytes}", "--at-once", "{at_once}",
         "--gpus", "{gpus}"),
        {},
        (EngineRequest("/tangram/release"),),
        (EngineRequest("/tangram/restore"),),
    ),
}  # fmt: skip


class SleepingServer(ProcessServer):
    """One server of such an engine on one chunk."""

    #: Its address while it sleeps; empty otherwise.
    _asleep_at = ""

    def _completed(self, service: GpuService) -> GpuService:
        """Add its engine's usual command where the service names none."""
        self._commands = COMMANDS[service.engine]
        command = service.command or self._commands.command
        return replace(service, command=command, env={**self._commands.env, **service.env})

    async def restore(self) -> None:
        """Wake it, or start it when no process sleeps. Raises EngineFailed."""
        url, self._asleep_at = self._asleep_at, ""
        if not url or not await self._woken(url):
            await super().restore()

    async def prepare(self) -> None:
        """Start it and put it to sleep, unless it runs. Raises EngineFailed."""
        if not self._running:
            self._asleep_at = await self._launched(self._prepared)

    async def _prepared(self, client: httpx.AsyncClient) -> None:
        """Wait until the new server answers, and put it to sleep."""
        await self._warm(client)
        await self._take(client, self._commands.sleep)

    async def _woken(self, url: str) -> bool:
        """Wake it; False when it refused or died, and was ended."""
        limit = self._service.restore_timeout_seconds
        try:
            async with asyncio.timeout(limit), loopback_client(url) as client:
                await self._take(client, self._commands.wake)
                await self._warm(client)
        except TimeoutError:
            await self.close()
            raise EngineFailed(f"it was not awake within {limit:g} s") from None
        except (AnswersChanged, OutOfMemory):  # a new start would hide that, or fail as well
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
        """Put it to sleep. Raises EngineFailed; the caller closes it then."""
        if not self.alive:
            if self._asleep_at and self._running:
                return ServiceEvent.EVICTED
            return await super().evict()
        url, self._url = self._url, ""
        limit = self._service.restore_timeout_seconds
        try:
            async with asyncio.timeout(limit), loopback_client(url) as client:
                await self._take(client, self._commands.sleep)
        except TimeoutError:
            raise EngineFailed(f"it did not sleep within {limit:g} s") from None
        self._asleep_at = url
        return ServiceEvent.EVICTED

    async def close(self) -> None:
        """End its session, asleep or awake."""
        self._asleep_at = ""
        await super().close()

    async def _take(self, client: httpx.AsyncClient, steps: Sequence[EngineRequest]) -> None:
        for step in steps:
            try:
                answer = await client.post(step.path, json=step.body)
            except httpx.TransportError as error:
                raise EngineFailed(f"{step.path} was not answered: {error!r}") from None
            if not answer.is_success:
                words = answer.text[:_WORDS_CHARACTERS].strip()
                said = f"{step.path} was answered with {answer.status_code}: {words}"
                raise AnswersChanged(said) if _CHANGED in words else failed_with(said)


#: Answered as soon as the weights are in host memory.
_PREPARED: Final = WarmUp(path="/tangram/state")


class TorchServer(SleepingServer):
    """One worker on one chunk."""

    async def _arrive(self, client: httpx.AsyncClient) -> None:
        """Wait for the copy in host memory, wake the worker, and request the warm-up."""
        await self._poll(client, _PREPARED)
        await self._take(client, self._commands.wake)
        await self._warm(client)

    async def _prepared(self, client: httpx.AsyncClient) -> None:
        """Wait for the copy in host memory: the worker starts asleep."""
        await self._poll(client, _PREPARED)

    async def _spawn(self, port: str) -> None:
        link_torch_worker(self._directory)
        await super()._spawn(port)

    def _environment(self) -> dict[str, str]:
        return with_torch_worker(super()._environment(), self._directory)
