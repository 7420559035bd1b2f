"""The ranks as the trainer sees them: started together, given the same orders, and started again together.

Lifetimes: the processes of a group live until one of them ends or is silent; then all are ended, and the next order starts other ones.

Rules
1. `order` returns the answers of all ranks, or raises `RankLost`, which names the rank. After that no process of the group is left.
2. What ranks write to the standard error is in ``RUN/logs/rank-N.log``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: Python with torch, for ranks and engines.
TORCH_PYTHON: Final = "/usr/bin/python3"
_START_SECONDS: Final = 120.0
_SHOWN: Final = 400


class RankLost(Exception):
    """A rank ended, or has said nothing for too long."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank = rank


class RankGroup:
    """The processes of all ranks."""

    def __init__(
        self,
        ranks: int,
        run: Path,
        *,
        dispatcher: bool = False,
        python: str = TORCH_PYTHON,
        silence_seconds: float = 300.0,
        on_phase: Callable[[int, str], None] | None = None,
    ) -> None:
        """``dispatcher``: ranks exchange rows by it; ``on_phase``: called with rank and phase when a rank begins one."""
        self.ranks, self.run = ranks, run
        self._python, self._silence, self._dispatcher = python, silence_seconds, dispatcher
        self._on_phase = on_phase
        self._processes: list[subprocess.Popen[str]] = []
        self._said: queue.Queue[tuple[int, int, dict[str, Any] | None]] = queue.Queue()
        self._generation = 0

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty while none run."""
        return [each.pid for each in self._processes]

    def order(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give each rank an order; return their answers by rank. Raises RankLost."""
        if not self._processes:
            self._start()
        line = json.dumps(order) + "\n"
        for rank, process in enumerate(self._processes):
            try:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            except OSError as error:
                self._lose(rank, f"takes no order: {error}")
        return self._answers(self._silence)

    def close(self) -> None:
        """End all ranks."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            with contextlib.suppress(OSError):  # what it did not read any more
                assert process.stdin is not None
                process.stdin.close()
        self._processes = []

    def _start(self) -> None:
        self._generation += 1
        logs = self.run / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        meeting = Path(tempfile.mkdtemp(prefix="meeting-", dir=self.run)) / "ranks"
        for rank in range(self.ranks):
            command = [self._python, "-m", "examples.agent_training.rank_process"]
            command += ["--rank", str(rank), "--ranks", str(self.ranks)]
            command += ["--meeting", str(meeting), "--run", str(self.run)]
            command += ["--dispatcher"] if self._dispatcher else []
            with (logs / f"rank-{rank}.log").open("ab") as log:
                process = subprocess.Popen(
                    command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )  # fmt: skip
            self._processes.append(process)
            reader = (rank, self._generation, process.stdout)
            threading.Thread(target=self._read, args=reader, daemon=True).start()
        self._answers(_START_SECONDS)
        shutil.rmtree(meeting.parent)

    def _read(self, rank: int, generation: int, lines: Any) -> None:
        with lines:
            for line in lines:
                self._said.put((generation, rank, json.loads(line)))
        self._said.put((generation, rank, None))

    def _answers(self, silence: float) -> list[dict[str, Any]]:
        """Return what each rank answers."""
        found: dict[int, dict[str, Any]] = {}
        heard = dict.fromkeys(range(self.ranks), time.monotonic())
        while len(found) < self.ranks:
            quiet = min((when, rank) for rank, when in heard.items() if rank not in found)
            try:
                wait = max(0.0, quiet[0] + silence - time.monotonic())
                generation, rank, message = self._said.get(timeout=wait)
            except queue.Empty:
                self._lose(quiet[1], f"said nothing for {silence:g} s")
            if generation != self._generation:
                continue
            heard[rank] = time.monotonic()
            if message is None:
                self._lose(rank, f"ended{self._last_words(rank)}")
            elif "done" in message:
                found[rank] = message["done"]
            elif self._on_phase is not None:
                self._on_phase(rank, message["phase"])
        return [found[rank] for rank in range(self.ranks)]

    def _lose(self, rank: int, why: str) -> Any:
        self.close()
        raise RankLost(rank, why)

    def _last_words(self, rank: int) -> str:
        """Return why a rank ended: its signal, or the end of its log."""
        code = self._processes[rank].wait()
        if code < 0:
            return f" by signal {-code}"
        words = (self.run / "logs" / f"rank-{rank}.log").read_text(errors="replace")
        return f" with {code}: {words.strip()[-_SHOWN:]}"
