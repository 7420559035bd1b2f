"""Ray's object store, run by the Python that has Ray; argv: ranks, MiB of each, repeats. Prints seconds and digests as JSON.

The best use for it: each rank puts one object for each other rank, which that one alone reads, from memory that all share.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import ray

from benchmarks.dispatch.work import fingerprint, made


class RayRank:
    """One rank."""

    def __init__(self, rank: int, ranks: int, mebibytes: float) -> None:
        self.ranks, self.mine = ranks, made(rank, ranks, mebibytes)
        self.got: Any = None

    def put(self) -> list[Any]:
        """Put what each rank wants."""
        return [
            ray.put(np.ascontiguousarray(self.mine[part :: self.ranks]))
            for part in range(self.ranks)
        ]

    def take(self, references: list[Any]) -> None:
        """Assemble what this rank wants."""
        self.got = np.concatenate(ray.get(references))

    def digest(self) -> str:
        """Return the digest of what it has."""
        return fingerprint(self.got)


def main() -> None:
    """Exchange so many times."""
    ranks, mebibytes, repeats = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    actor: Any = ray.remote(num_cpus=0)(RayRank)
    members = [actor.remote(rank, ranks, mebibytes) for rank in range(ranks)]
    ray.get([member.put.remote() for member in members])
    seconds = []
    for _ in range(repeats):
        began = time.monotonic()
        parts = ray.get([member.put.remote() for member in members])
        ray.get(
            [member.take.remote([each[n] for each in parts]) for n, member in enumerate(members)]
        )
        seconds.append(time.monotonic() - began)
    digests = ray.get([member.digest.remote() for member in members])
    ray.shutdown()
    print(json.dumps({"seconds": seconds, "digests": digests}))


main()
