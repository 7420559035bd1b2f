"""Ranks of the benchmark on hosts, driven from one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dispatch.hosts import Host

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """One exchange: seconds from the first rank's begin to the last one's end, share of the cores in use, digests and bytes sent by rank."""

    seconds: float
    cpu_share: float
    digests: tuple[str, ...]
    sent: int


class Cluster:
    """Ranks that run, one on each host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._processes = [
            subprocess.Popen(
                [
                    *host.command,
                    *(sys.executable, "-m", "benchmarks.dispatch.rank", str(rank), host.address),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        listening = self._hear()
        kinds = listening[0].keys()
        self._say({kind: dict(enumerate(each[kind] for each in listening)) for kind in kinds})
        self._hear()

    def run(
        self, way: str, mebibytes: float, pattern: str = "all-to-all", digest: bool = False
    ) -> Run:
        """Exchange once."""
        command = {"way": way, "mebibytes": mebibytes, "pattern": pattern, "digest": digest}
        self._say({"do": "prepare", **command})
        self._hear()
        self._say({"do": "go"})
        answers = self._hear()
        seconds = max(each["ended"] for each in answers) - min(each["began"] for each in answers)
        cpu = sum(each["cpu"] for each in answers)
        cores = len(os.sched_getaffinity(0))
        digests = tuple(each["digest"] for each in answers)
        return Run(seconds, cpu / seconds / cores, digests, sum(each["sent"] for each in answers))

    def close(self) -> None:
        """End all ranks."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _say(self, message: dict[str, Any]) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def _hear(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("a rank of the benchmark ended; its output is above")
            found.append(json.loads(line))
        return found


@contextmanager
def cluster(hosts: Sequence[Host]) -> Iterator[Cluster]:
    """Run a rank on each host."""
    made = Cluster(hosts)
    try:
        yield made
    finally:
        made.close()
