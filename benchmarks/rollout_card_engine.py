"""Engines that `benchmarks.rollout_card` measures: an OpenAI-compatible server of vLLM or SGLang, asked in token ids, and started where it must be.

Lifetimes: one `EngineUnderTest` for a server, with connections of its own. `started` runs a server of this machine until its block is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from domain.fleet_engines import filled
from domain.fleets import FleetEngine
from managers.llm.engine_commands import COMMANDS

#: Ids of prompts: every published vocabulary has them, and none of them is special.
_IDS: Final = range(1_000, 9_000)
_BLOCKS: Final = re.compile(r"vllm:cache_config_info\{([^}]*)\}")
#: Flags beside those of workers of fleets: so that an engine can sleep.
_SLEEPS: Final = {
    FleetEngine.VLLM: ("--enable-sleep-mode",),
    FleetEngine.SGLANG: ("--enable-memory-saver",),
}


class Unmeasured(Exception):
    """A part cannot be measured here; the text says what is missing."""


@dataclass
class TimedStream:
    """One answer: when how many of its tokens were there."""

    began: float
    #: (moment, tokens so far), rising in both.
    moments: list[tuple[float, int]] = field(default_factory=list)
    cached_tokens: int = 0
    #: As the engine counted them; 0: it did not.
    sampled_tokens: int = 0

    @property
    def first_seconds(self) -> float:
        """Return the time to the first event."""
        return self.moments[0][0] - self.began


@dataclass
class EngineUnderTest:
    """One server."""

    url: str
    engine: FleetEngine
    model: str
    slots: int
    degree: int
    client: httpx.AsyncClient
    draws: Random = field(default_factory=lambda: Random(7))

    def prompt(self, tokens: int) -> list[int]:
        """Return a prompt that no other one shares a prefix with."""
        return self.draws.choices(_IDS, k=tokens)

    async def stream(
        self,
        prompt: Sequence[int],
        tokens: int,
        priority: int | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> TimedStream:
        """Sample exactly so many tokens; ``begun`` is called with the first. Raises Unmeasured."""
        body: dict[str, Any] = {
            "model": self.model, "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self.engine is not FleetEngine.OPENAI:
            body["return_token_ids"] = True
        if priority is not None:
            body["priority"] = priority
        found = TimedStream(time.perf_counter())
        url = f"{self.url}/v1/completions"
        async with self.client.stream("POST", url, json=body) as answer:
            if answer.status_code != 200:
                said = (await answer.aread())[:300].decode(errors="replace")
                raise Unmeasured(f"{self.url} answered {answer.status_code}: {said}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    first = not found.moments
                    _take(found, json.loads(line[6:]), tokens)
                    if first and found.moments:
                        begun()
        _spread(found)
        if not found.moments or found.moments[-1][1] < tokens:
            raise Unmeasured(f"{self.url} ended a stream before its {tokens} tokens")
        return found

    async def answer(self, prompt: Sequence[int], tokens: int) -> str:
        """Return the greedy answer as text."""
        body = {
            "model": self.model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0.0,
            "ignore_eos": True,
        }  # fmt: skip
        found = await self.client.post(f"{self.url}/v1/completions", json=body)
        if found.status_code != 200:
            raise Unmeasured(f"{self.url} answered {found.status_code}: {found.text[:300]}")
        return str(found.json()["choices"][0]["text"])

    async def post(self, path: str, wanted: str) -> float:
        """Return the seconds of a POST without a body; ``wanted``: what an engine needs for it. Raises Unmeasured."""
        began = time.perf_counter()
        answer = await self.client.post(self.url + path, json={})
        if answer.status_code != 200:
            raise Unmeasured(f"{path} answered {answer.status_code}: {wanted}")
        return time.perf_counter() - began

    async def kv_tokens(self) -> float:
        """Return the tokens of cache that fit, as the engine says. Raises Unmeasured."""
        if self.engine is FleetEngine.SGLANG:
            found = (await self.client.get(f"{self.url}/get_server_info")).json()
            tokens = found.get("max_total_num_tokens")
        else:
            tokens = vllm_kv_tokens((await self.client.get(f"{self.url}/metrics")).text)
        if not tokens:
            raise Unmeasured(f"{self.url} does not say how much cache it has: give --kv-tokens")
        return float(tokens)


def _take(found: TimedStream, event: Mapping[str, Any], tokens: int) -> None:
    """Add one event of a stream; one that names no ids has one token."""
    if usage := event.get("usage"):
        details = usage.get("prompt_tokens_details") or {}
        found.cached_tokens = details.get("cached_tokens") or 0
        found.sampled_tokens = usage.get("completion_tokens") or 0
    for choice in event.get("choices") or ():
        ids = choice.get("token_ids")
        added = 1 if ids is None else len(ids)
        before = found.moments[-1][1] if found.moments else 0
        if added and before < tokens:
            found.moments.append((time.perf_counter(), min(tokens, before + added)))


def _spread(found: TimedStream) -> None:
    """Share the tokens that the engine counted among the events, where those that name no ids have more than one."""
    events = found.moments[-1][1] if found.moments else 0
    if 0 < events < found.sampled_tokens:
        each = found.sampled_tokens / events
        found.moments = [(moment, round(count * each)) for moment, count in found.moments]


def vllm_kv_tokens(metrics: str) -> float | None:
    """Return the tokens of cache that vLLM's ``/metrics`` names; None where it names none."""
    found = _BLOCKS.search(metrics)
    if found is None:
        return None
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
    try:
        return float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return None


@asynccontextmanager
async def started(
    engine: FleetEngine, source: str, gpus: Sequence[int], slots: int, port: int, folder: Path
) -> AsyncIterator[float]:
    """Run an engine on these GPUs, as a worker of a fleet, able to sleep; give the seconds until it answered. Raises Unmeasured."""
    values = {
        "source": source, "host": "127.0.0.1", "port": str(port), "gpus": str(len(gpus)),
        "slots": str(slots),
    }  # fmt: skip
    command = [*filled(COMMANDS[engine], values), *_SLEEPS.get(engine, ())]
    # Of this Python, whatever the path has before it.
    own = Path(sys.executable).parent / command[0]
    if own.exists():
        command[0] = str(own)
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "VLLM_SERVER_DEV_MODE": "1",  # else vLLM has no pages for sleep and wake
    }
    log = folder / f"engine-{port}.log"
    began = time.perf_counter()
    process = _launched(command, environment, log)
    try:
        await _until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        yield time.perf_counter() - began
    finally:
        _end(process)


def _launched(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a process with a session of its own, whose output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-600:]


async def _until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 1200
    async with httpx.AsyncClient(timeout=5) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Unmeasured(f"the engine ended with {process.returncode}: …{_last_words(log)}")
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.5)
    raise Unmeasured(f"the engine did not answer in 20 minutes: {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an engine and the processes of its session: one for each GPU."""
    for ending, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 30)):
        if process.poll() is None:
            os.killpg(process.pid, ending)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        return
