"""Tensor-parallel servers of this machine as degrees of one service, without a Tangram: what the profile itself measures."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import httpx
import msgspec

from benchmarks.stack import free_port
from domain.selectors import ParallelismProfile, with_change
from examples.tensor_parallel.declare import PYTHON, ROOT, SIZES
from managers.gpu.profiling import CallAnswer

_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 120.0


class TensorParallelServer:
    """One server process on so many ranks, from its start to its end."""

    def __init__(
        self, gpus: int, memory_bytes: int, sizes: Mapping[str, int] = SIZES, weights: str = "",
        seed: int = 0,
    ) -> None:  # fmt: skip
        port = free_port()
        self.gpus, self.url = gpus, f"http://127.0.0.1:{port}"
        command = [PYTHON, "-m", "examples.tensor_parallel.server", "--port", str(port)]
        command += ["--gpus", str(gpus), "--memory-bytes", str(memory_bytes), "--seed", str(seed)]
        command += ["--weights", weights] if weights else []
        command += [part for size, value in sizes.items() for part in (f"--{size}", str(value))]
        self._log = Path(tempfile.mkdtemp(prefix="tangram-tp-")) / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self.client = httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=None)

    async def ready(self) -> Self:
        """Return when it answers. Raises RuntimeError with its last words when it ended."""
        until = monotonic() + _START_SECONDS
        while monotonic() < until:
            try:
                if (await self.client.get("/health")).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended: {self._log.read_text()[-2000:]}")
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"no answer: {self._log.read_text()[-2000:]}")

    async def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Return the answer to a request."""
        return await self.client.post(path, json=dict(body))

    async def close(self) -> None:
        """End it, and its ranks."""
        await self.client.aclose()
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 30)


class DirectProbe:
    """A service on ``total`` ranks, of which one degree runs at a time: a change ends its servers and starts those of the other."""

    def __init__(
        self, total: int, memory_bytes: int, sizes: Mapping[str, int] = SIZES, weights: str = ""
    ) -> None:
        self._total, self._memory_bytes, self._sizes = total, memory_bytes, sizes
        self._weights = weights
        self._gpus = 0
        self._servers: list[TensorParallelServer] = []
        self._idle: asyncio.Queue[TensorParallelServer] = asyncio.Queue()
        self._lock = asyncio.Lock()

    async def switch(self, gpus: int) -> float | None:
        """Have servers on ``gpus`` ranks each; return what that took, None: nothing."""
        async with self._lock:
            if gpus == self._gpus:
                return None
            began = monotonic()
            await self.close()
            self._servers = [
                TensorParallelServer(gpus, self._memory_bytes, self._sizes, self._weights)
                for _ in range(self._total // gpus)
            ]
            await asyncio.gather(*(each.ready() for each in self._servers))
            for each in self._servers:
                self._idle.put_nowait(each)
            self._gpus = gpus
            return monotonic() - began

    async def call(self, gpus: int, body: Mapping[str, Any], seconds: float) -> CallAnswer:
        """Post a completion to a server that is idle."""
        restored = await self.switch(gpus)
        server = await self._idle.get()
        began = monotonic()
        try:
            answer = await asyncio.wait_for(server.post("/v1/completions", body), seconds)
        except (TimeoutError, httpx.TransportError) as error:
            return CallAnswer(0, detail=f"{type(error).__name__}: {error}")
        finally:
            self._idle.put_nowait(server)
        return CallAnswer(
            answer.status_code, answer.json(), monotonic() - began, restored, server.url
        )

    async def close(self) -> None:
        """End all servers."""
        await asyncio.gather(*(each.close() for each in self._servers))
        self._servers, self._gpus, self._idle = [], 0, asyncio.Queue()


class FileCells:
    """Keeps each change of a profile as a line of a file, written through before the next cell begins."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def known(self) -> ParallelismProfile | None:
        """Return what is kept; a line that was cut by a kill is not."""
        found: ParallelismProfile | None = None
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                change = msgspec.json.decode(line, type=ParallelismProfile)
            except msgspec.DecodeError:
                continue
            found = with_change(found, change)
        return found

    async def put(self, change: ParallelismProfile) -> None:
        """Append a line."""
        # A line that was cut before ends here.
        text = json.dumps(msgspec.to_builtins(change))
        with self._path.open("a") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
