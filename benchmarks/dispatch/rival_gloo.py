"""gloo: one rank; argv: rank, ranks, file to meet by, way, MiB of each rank, repeats. Prints spans and a digest as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.dispatch.work import fingerprint, made


def exchange(way: str, mine: Any, rank: int, ranks: int) -> Any:
    """Return every n-th row of all ranks' ``mine``."""
    rows = torch.from_numpy(mine)
    if way == "all_to_all_single":
        given = torch.cat([rows[part::ranks] for part in range(ranks)])
        got = torch.empty_like(given)
        dist.all_to_all_single(got, given)
        return got.numpy()
    if way == "all_gather":
        every = [torch.empty_like(rows) for _ in range(ranks)]
        dist.all_gather(every, rows)
        return torch.cat(every)[rank::ranks].numpy()
    gathered = [torch.empty_like(rows) for _ in range(ranks)] if rank == 0 else None
    dist.gather(rows, gathered)
    parts = None
    if gathered is not None:
        whole = torch.cat(gathered)
        parts = [whole[part::ranks].contiguous() for part in range(ranks)]
    got = torch.empty_like(rows)
    dist.scatter(got, parts)
    return got.numpy()


def main() -> None:
    """Exchange so many times, after one that opens the connections."""
    rank, ranks, store, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mine = made(rank, ranks, float(sys.argv[5]))
    exchange(way, np.ascontiguousarray(mine[:ranks]), rank, ranks)
    spans = []
    for _ in range(int(sys.argv[6])):
        dist.barrier()
        began = time.monotonic()
        got = exchange(way, mine, rank, ranks)
        spans.append((began, time.monotonic()))
    dist.barrier()
    print(json.dumps({"spans": spans, "digest": fingerprint(got)}), flush=True)


main()
