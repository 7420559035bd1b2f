"""Engines whose servers sleep, against fakes of their protocols."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from domain.services import Degree, Engine, GpuService, ServiceEvent, WarmUp, check_service
from managers.gpu.engines import AnswersChanged, EngineFailed, OutOfMemory, Server
from managers.gpu.engines.sleeping import SleepingServer
from managers.gpu.service_runner import ServiceRunner
from tests.architecture.tree import ROOT
from tests.conformance.engine import EngineConformance
from tests.conformance.test_engines import TROUBLES
from tests.working_directories import processes_in

FAKE = (sys.executable, str(ROOT / "tests/sleeping_engine.py"), "{port}")
#: Holds memory and never answers.
SILENT = "import pathlib, time; pathlib.Path('gpu_memory').touch(); time.sleep(600)"


def lose_patience(server: Server) -> None:
    """Wait no longer than a moment, now that it has been started: that takes what it takes."""
    assert isinstance(server, SleepingServer)
    server._service = replace(server._service, restore_timeout_seconds=0.5)


class SleepingConformance(EngineConformance):
    """What both engines have in common."""

    engine: Engine

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self._directory = tmp_path / "server"

    def make(self, trouble: str = "") -> Server:
        command: tuple[str, ...] = FAKE
        timeout = 180.0
        if trouble in ("hangs", "waits"):
            command, timeout = (sys.executable, "-c", SILENT, "{port}"), TROUBLES[trouble][0]
        elif trouble == "dies":
            command = TROUBLES[trouble][1]
        elif trouble:
            command = (*FAKE, trouble)
        service = GpuService(
            self.engine,
            (Degree(1, 2**30),),
            source="some/model",
            command=command,
            restore_timeout_seconds=timeout,
            warm_up=WarmUp("POST", "/v1/score", '{"text": "x"}', "score"),
        )
        check_service("model", service)
        return SleepingServer(service, (0,), self._directory, grace_seconds=0.3)

    def holds_memory(self, server: Server) -> bool:
        return bool(self._processes()) and (self._directory / "gpu_memory").exists()

    async def kill(self, server: Server) -> None:
        for process in self._processes():
            process.kill()
        while server.alive or self._processes():
            await asyncio.sleep(0.01)

    def _processes(self) -> list[psutil.Process]:
        return processes_in(self._directory)

    async def test_it_sleeps_as_the_same_process_and_wakes_as_it(self) -> None:
        server = self.make()
        try:
            await server.restore()
            (before,) = self._processes()
            assert await server.evict() is ServiceEvent.EVICTED
            assert await server.evict() is ServiceEvent.EVICTED, "again is the same"
            await server.restore()
            (after,) = self._processes()
            assert before.pid == after.pid
            await self.ask(server)
        finally:
            await server.close()

    async def test_one_that_dies_asleep_is_started_again(self) -> None:
        server = self.make()
        try:
            await server.restore()
            await server.evict()
            await self.kill(server)
            await server.restore()
            await self.ask(server)
        finally:
            await server.close()

    @pytest.mark.parametrize(
        ("trouble", "words"),
        [
            ("no-sleep", "answered with 500"),
            ("hang-sleep", "did not sleep within"),
            ("dies-draining", "was not answered"),
        ],
    )
    async def test_one_that_does_not_go_to_sleep_says_so(self, trouble, words) -> None:
        server = self.make(trouble)
        try:
            await server.restore()
            if trouble == "hang-sleep":
                lose_patience(server)
            with pytest.raises(EngineFailed, match=words):
                await server.evict()
            assert (server.alive, server.base_url) == (False, "")
        finally:
            await server.close()

    @pytest.mark.parametrize(
        ("trouble", "failure", "words"),
        [
            ("garbage", AnswersChanged, "otherwise than after its first restore"),
            ("full", OutOfMemory, "declare memory_bytes"),
        ],
    )
    async def test_one_that_wakes_wrong_is_ended_with_a_failure_of_its_own_kind(
        self, trouble, failure, words
    ) -> None:
        """It is not started again: that would hide garbage, and find no more memory."""
        server = self.make(trouble)
        try:
            await server.restore()
            await server.evict()
            with pytest.raises(failure, match=words):
                await server.restore()
            assert self._processes() == []
        finally:
            await server.close()

    async def test_a_cancelled_wake_leaves_nothing(self) -> None:
        server = self.make("no-wake")
        await server.restore()
        await server.evict()
        waking = asyncio.ensure_future(server.restore())
        await asyncio.sleep(0)
        waking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waking
        assert self._processes() == []

    async def test_memory_that_it_frees_after_its_answer_is_waited_for(self) -> None:
        """I11: a 200 is no proof."""
        home = ("late", (0,))
        free = lambda _: 0 if (self._directory / "gpu_memory").exists() else 2**30  # noqa: E731
        runner = ServiceRunner(lambda *_: self.make("late"), free, patience_seconds=60)
        try:
            await runner.hold("x", home, 2**30)
            runner.release("x", home)
            await runner.clear((0,), 2**30)
            assert not (self._directory / "gpu_memory").exists()
        finally:
            await runner.close()

    async def test_one_that_does_not_wake_is_ended_in_time(self) -> None:
        server = self.make("no-wake")
        try:
            await server.restore()
            await server.evict()
            lose_patience(server)
            with pytest.raises(EngineFailed, match="not awake within"):
                await server.restore()
            assert self._processes() == []
        finally:
            await server.close()


@pytest.mark.slow
class TestVllm(SleepingConformance):
    """Sleep mode of vLLM."""

    engine = Engine.VLLM


@pytest.mark.slow
class TestSglang(SleepingConformance):
    """The memory saver of SGLang."""

    engine = Engine.SGLANG


def test_the_usual_command_is_taken_where_none_is_declared(tmp_path: Path) -> None:
    service = GpuService(Engine.VLLM, (Degree(1, 2**30),), source="some/model")
    server = SleepingServer(service, (0,), tmp_path)

    assert server._service.command[:3] == ("vllm", "serve", "{source}")
    assert server._service.env == {"VLLM_SERVER_DEV_MODE": "1"}
