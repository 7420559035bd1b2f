"""Every engine obeys the rules of its port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from domain.services import Degree, Engine, GpuService, check_service
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.engines.fake import FakeEngineServer, FakeMemory
from managers.gpu.engines.process import ProcessServer
from tests.architecture.tree import ROOT
from tests.conformance.engine import EngineConformance
from tests.working_directories import processes_in

MODEL = (sys.executable, str(ROOT / "examples/gpu_service/numpy_model.py"), "--port", "{port}")
#: Its helper outlives a polite end, and keeps what it has.
STUBBORN = """
import signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
time.sleep(600)
"""
DYING = "import sys; print('CUDA out of memory', file=sys.stderr); sys.exit(1)"
TROUBLES = {
    "": (180.0, (*MODEL, "--mebibytes", "1")),
    "hangs": (0.5, (sys.executable, "-c", STUBBORN, "{port}")),
    "waits": (180.0, (sys.executable, "-c", STUBBORN, "{port}")),
    "dies": (180.0, (sys.executable, "-c", DYING, "{port}")),
}


class TestFakeEngine(EngineConformance):
    """The in-memory twin."""

    def make(self, trouble: str = "") -> Server:
        return FakeEngineServer(FakeMemory(), (0, 1), 60, trouble)

    def holds_memory(self, server: Server) -> bool:
        assert isinstance(server, FakeEngineServer)
        return any(server.memory.used.values())

    async def kill(self, server: Server) -> None:
        assert isinstance(server, FakeEngineServer)
        server.crash()

    async def ask(self, server: Server) -> Any:
        assert server.alive
        return 0.5


@pytest.mark.slow
class TestProcessEngine(EngineConformance):
    """A server of numpy weights, and programs that misbehave."""

    prepares = False

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self._directory = tmp_path

    def make(self, trouble: str = "") -> Server:
        timeout, command = TROUBLES[trouble]
        service = GpuService(
            Engine.PROCESS, (Degree(2, 2**30),), command=command, restore_timeout_seconds=timeout
        )
        check_service("numpy", service)
        return ProcessServer(service, (0, 1), self._directory / "server", grace_seconds=0.3)

    def holds_memory(self, server: Server) -> bool:
        return bool(self._processes())

    async def kill(self, server: Server) -> None:
        for process in self._processes():
            process.kill()
        while server.alive:
            await asyncio.sleep(0.01)

    def _processes(self) -> list[psutil.Process]:
        """Return the processes that work in the server's directory, which are its own."""
        return processes_in(self._directory / "server")

    async def test_it_sees_its_gpus_and_nothing_of_the_workers_environment(self, monkeypatch):
        monkeypatch.setenv("TANGRAM_SECRET", "do not tell")
        tell = "import os, sys; print(*(f'{k}={v}' for k, v in os.environ.items())); sys.exit(1)"
        service = GpuService(
            Engine.PROCESS,
            (Degree(2, 2**30),),
            command=(sys.executable, "-c", tell, "{port}"),
            env={"MODE": "fast"},
        )
        server = ProcessServer(service, (2, 3), self._directory / "server")
        with pytest.raises(EngineFailed) as failed:
            await server.restore()
        said = str(failed.value)
        assert "CUDA_VISIBLE_DEVICES=2,3" in said
        assert "MODE=fast" in said
        assert "do not tell" not in said

    async def test_a_program_that_is_not_there_is_named(self):
        service = GpuService(
            Engine.PROCESS, (Degree(1, 2**30),), command=("no-such-server", "{port}")
        )
        server = ProcessServer(service, (0,), self._directory / "server")
        with pytest.raises(EngineFailed, match="'no-such-server' cannot be started"):
            await server.restore()
