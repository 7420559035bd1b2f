"""The ranks of one replica: started, asked together, and ended together when one of them ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from examples.rollouts.small_model.transformer import Request, Response, Shape
from examples.tensor_parallel.memory_limit import evidence, kernel_kills

_LAST_WORDS_BYTES = 2000
#: Longest wait for the end of ranks whose replica is ended.
_GRACE_SECONDS = 5.0


class OutOfMemory(Exception):
    """A rank has ended for lack of memory; the words are the evidence."""


class RankEnded(Exception):
    """A rank has ended otherwise, or ranks do not agree."""


class WrongWeights(Exception):
    """Weights that the ranks refused; they have those of before."""


class Answer(NamedTuple):
    """What one rank made of a batch; of a replica, what all did."""

    responses: list[Response]
    prefill_seconds: float
    decode_seconds: float
    #: Without the interpreter; of a replica, the largest of its ranks.
    peak_memory_bytes: int


class Ranks:
    """Processes of one replica. Not thread-safe."""

    def __init__(self, shape: Shape, shards: int, memory_bytes: int) -> None:
        """``memory_bytes``: limit of each rank; 0: none."""
        self._shape, self._shards, self._memory_bytes = shape, shards, memory_bytes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._folder = Path(tempfile.mkdtemp(prefix="tensor-parallel-"))
        self._starts = 0
        self._kernel_kills = 0

    @property
    def running(self) -> bool:
        """All ranks were started, and none was seen to end."""
        return bool(self._processes)

    def start(self) -> None:
        """Start the processes; they answer once they have found each other."""
        self._starts += 1
        self._kernel_kills = kernel_kills()
        store = self._folder / f"store-{self._starts}"
        for rank in range(self._shards):
            ours, theirs = socket.socketpair()
            command = [
                sys.executable, "-m", "examples.tensor_parallel.rank", str(theirs.fileno()),
                *map(str, (rank, self._shards, store, self._memory_bytes)),
                json.dumps(self._shape),
            ]  # fmt: skip
            with self._errors(rank).open("wb") as errors:
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stderr=errors, env=_environment()
                )
            theirs.close()
            self._processes.append(process)
            self._pipes.append(Connection(ours.detach()))

    def load(self, path: str, seed: int) -> int:
        """Let all take weights; return their version. Raises WrongWeights, OutOfMemory, RankEnded."""
        version: int = self._ask(("load", path, seed))[0]
        return version

    def sample(self, requests: Sequence[Request]) -> Answer:
        """Return what all ranks sampled alike. Raises OutOfMemory, RankEnded; then all are ended."""
        found = [Answer(*each) for each in self._ask(("sample", list(requests)))]
        ids = [[response.ids for response in each.responses] for each in found]
        if any(each != ids[0] for each in ids):
            self.close()
            raise RankEnded("its ranks sampled different tokens")
        peak = max(each.peak_memory_bytes for each in found)
        return found[0]._replace(peak_memory_bytes=peak)

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.wait(_GRACE_SECONDS)
        self._pipes, self._processes = [], []

    def _ask(self, command: tuple[Any, ...]) -> list[Any]:
        answers: dict[int, Any] = {}
        try:
            for pipe in self._pipes:
                pipe.send(command)
            while len(answers) < self._shards:
                open_pipes = [pipe for n, pipe in enumerate(self._pipes) if n not in answers]
                ready = wait(open_pipes)
                for rank, pipe in enumerate(self._pipes):
                    if pipe in ready:
                        answers[rank] = pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if wrong := [each for kind, each in answers.values() if kind == "wrong"]:
            raise WrongWeights(wrong[0])
        return [answers[rank][1] for rank in range(self._shards)]

    def _ended(self) -> Exception:
        """Return why a rank has ended, and end the others."""
        reasons = []
        for rank, process in enumerate(self._processes):
            try:
                # One whose pipe broke ends by itself; another waits for it in a sum.
                status = process.wait(_GRACE_SECONDS / 10)
            except subprocess.TimeoutExpired:
                continue
            words = self._errors(rank).read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
            kills = kernel_kills() - self._kernel_kills
            reasons.append((evidence(status, words, kills), rank, status, words.strip()))
        self.close()
        for reason, rank, _, words in reasons:
            if reason:
                last = words.splitlines()[-1] if words else ""
                return OutOfMemory(f"rank {rank} of {self._shards}: {reason}: {last}")
        return RankEnded(
            "; ".join(
                f"rank {rank} ended with status {status}: {words}"
                for _, rank, status, words in reasons
            )
            or "a rank closed its pipe"
        )

    def _errors(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"


def _environment() -> dict[str, str]:
    """Return variables with which ranks meet on the loopback, with one thread and one arena of memory each."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**20),
    }
