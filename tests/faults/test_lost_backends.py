"""Backends that are killed or stopped while they sample: the turn is sampled by another, and its tokens are whole."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rollout.llm.engine_client import EngineClient, ExchangeLimits
from rollout.llm.sampler import SampleRequest, TurnSample, TurnSampler
from rollout.llm.sampling_options import SamplingOptions
from rollout.ports import Seat
from tests.architecture.tree import ROOT
from tests.chat_models import tokenizer
from tests.ports import free_port
from tests.scripted_backends import PROMPT, TestBinding

pytestmark = pytest.mark.slow

SAID = "The scheduler grants cores to an action."


class Process:
    """The scripted server of the examples, as its page says to start it."""

    def __init__(self, folder: Path, token_seconds: float) -> None:
        self.port = free_port()
        script = folder / "replies.yaml"
        script.write_text(f'- {{when: "", say: "{SAID}"}}\n')
        command = [sys.executable, "-m", "examples.rollouts.scripted_llm", "--dialect", "vllm"]
        command += ["--port", str(self.port), "--script", str(script)]
        self.process = subprocess.Popen([*command, "--token-seconds", str(token_seconds)], cwd=ROOT)

    async def asked(self, count: int) -> None:
        """Wait until it answers, and has got ``count`` requests for tokens."""
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(120):
            while True:
                try:
                    health = await client.get(f"http://127.0.0.1:{self.port}/health")
                    if health.json()["asked"] >= count:
                        return
                except httpx.TransportError:
                    assert self.process.poll() is None
                await asyncio.sleep(0.02)

    def seat(self, name: str) -> Seat:
        return Seat("policy", name, f"http://127.0.0.1:{self.port}", 1)


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """Yield one that takes a minute for an answer, and one that answers at once."""
    started = (Process(tmp_path, 6.0), Process(tmp_path, 0.0))
    yield started
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_turn_survives_the_loss_of_its_backend(
    backends: tuple[Process, Process], lost: signal.Signals
) -> None:
    slow, quick = backends
    await asyncio.gather(slow.asked(0), quick.asked(0))
    client = EngineClient(ExchangeLimits(watch_seconds=0.2, health_seconds=0.5))
    sampler = TurnSampler(client)
    binding = TestBinding(slow.seat("b1"), quick.seat("b2"))
    request = SampleRequest(PROMPT, SamplingOptions(), tokenizer().vocabulary_size)

    async def sampled() -> TurnSample:
        return await asyncio.wait_for(sampler.sample(binding, request), 50)

    try:
        turn = asyncio.create_task(sampled())
        await slow.asked(1)
        slow.process.send_signal(lost)
        found = await turn
    finally:
        await client.close()

    assert found.seat.backend == "b2"
    assert tokenizer().response_text(found.tokens.ids.tolist()) == SAID
    assert list(sampler.health.avoided(0.0)) == ["b1"]
