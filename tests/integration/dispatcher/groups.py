"""Groups of real processes on loopback, for tests: one for each rank, with a listener that it inherits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatcher.local import execute
from dispatcher.transport.tcp import listen
from tests.architecture.tree import ROOT
from tests.integration.dispatcher.cases import fingerprint, prepared
from tests.torch_workers import PYTHON, VARIABLES


class RankProcess:
    """A rank that runs, from its start to its end."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        listener: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            command,
            pass_fds=[] if listener is None else [listener],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def open(self) -> None:
        """Return when its group is connected."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "open\n", line

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return what it printed at its end; {} where it was killed."""
        out, _ = self.process.communicate(timeout=60)
        lines = out.splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1] != "open" else {}
        return found


@contextmanager
def group(
    size: int,
    case: str | Mapping[int, str],
    *options: str,
    of_rank: Mapping[int, Sequence[str]] | None = None,
    addresses_of: Mapping[int, Mapping[int, tuple[str, int]]] | None = None,
    python_of: Mapping[int, str] | None = None,
) -> Iterator[dict[int, RankProcess]]:
    """Start the ranks of a group; kill what is left at the end."""
    listeners = {rank: listen() for rank in range(size)}
    addresses = {rank: listener.getsockname()[:2] for rank, listener in listeners.items()}
    ranks: dict[int, RankProcess] = {}
    try:
        for rank, listener in listeners.items():
            known = {**addresses, **(addresses_of or {}).get(rank, {})}
            command = [
                *((python_of or {}).get(rank, sys.executable), "-m"),
                *("tests.integration.dispatcher.tcp_rank", str(rank)),
                *("--listener", str(listener.fileno()), "--addresses", json.dumps(known)),
                *("--case", case if isinstance(case, str) else case[rank]),
                *options,
                *(of_rank or {}).get(rank, ()),
            ]
            ranks[rank] = RankProcess(rank, command, listener.fileno())
            listener.close()
        yield ranks
    finally:
        _end(ranks)


@contextmanager
def torch_group(
    size: int,
    case: str,
    folder: Path,
    *options: str,
    of_rank: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[dict[int, RankProcess]]:
    """Start the ranks of a process group of torch (gloo), which meet by a file in a folder; kill what is left at the end."""
    ranks: dict[int, RankProcess] = {}
    try:
        for rank in range(size):
            command = [
                *(PYTHON, "-m", "tests.integration.dispatcher.torch_rank", str(rank)),
                *("--size", str(size), "--store", str(folder / "store"), "--case", case),
                *options,
                *(of_rank or {}).get(rank, ()),
            ]
            ranks[rank] = RankProcess(rank, command, env=VARIABLES)
        yield ranks
    finally:
        _end(ranks)


def _end(ranks: Mapping[int, RankProcess]) -> None:
    for each in ranks.values():
        each.process.kill()
        each.process.communicate()


def reference(case: str) -> dict[int, dict[str, str]]:
    """Return target rank → fingerprints, as the reference makes them in one process."""
    plan, arrays = prepared(case)
    return {rank: fingerprint(got) for rank, got in execute(plan, arrays).items()}
