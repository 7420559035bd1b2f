"""TransferQueue, run by the Python that has it; argv: ranks, MiB of each, repeats. Prints seconds and digests as JSON.

Its key-value interface with the storage that it brings (ZeroMQ, two units, as configured by default): each rank puts its rows, one sample each, and gets
those that it wants by their keys. The controller carries metadata alone.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from tensordict import TensorDict

from benchmarks.dispatch.work import fingerprint, made, rows


class QueueRank:
    """One rank."""

    def __init__(self, rank: int, ranks: int, mebibytes: float) -> None:
        self.rank, self.ranks, self.count = rank, ranks, rows(ranks, mebibytes)
        self.mine = torch.from_numpy(made(rank, ranks, mebibytes))
        self.got: Any = None
        transfer_queue.init()

    def put(self, partition: str) -> None:
        """Put the rows of this rank."""
        first = self.rank * len(self.mine)
        transfer_queue.kv_batch_put(
            keys=[str(first + number) for number in range(len(self.mine))],
            partition_id=partition,
            fields=TensorDict({"returns": self.mine}, batch_size=len(self.mine)),
            tags=[{} for _ in self.mine],
        )

    def take(self, partition: str) -> None:
        """Get the rows that this rank wants."""
        keys = [str(number) for number in range(self.rank, self.count, self.ranks)]
        found = transfer_queue.kv_batch_get(keys=keys, partition_id=partition)["returns"]
        self.got = np.stack([row.numpy() for row in found.unbind()])

    def digest(self) -> str:
        """Return the digest of what it has."""
        return fingerprint(self.got)


def main() -> None:
    """Exchange so many times."""
    ranks, mebibytes, repeats = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    ray.init(num_cpus=16, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    transfer_queue.init()
    actor: Any = ray.remote(num_cpus=0)(QueueRank)
    members = [actor.remote(rank, ranks, mebibytes) for rank in range(ranks)]
    seconds = []
    for number in range(repeats + 1):
        began = time.monotonic()
        ray.get([member.put.remote(f"step-{number}") for member in members])
        ray.get([member.take.remote(f"step-{number}") for member in members])
        seconds.append(time.monotonic() - began)
        transfer_queue.kv_clear(
            keys=[str(row) for row in range(rows(ranks, mebibytes))], partition_id=f"step-{number}"
        )
    digests = ray.get([member.digest.remote() for member in members])
    transfer_queue.close()
    ray.shutdown()
    # The first one opens connections.
    print(json.dumps({"seconds": seconds[1:], "digests": digests}))


main()
