"""Parts of the benchmark that count bytes and time plans."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import numpy as np

from dispatcher.balance import balanced
from dispatcher.layout import Layout, Mesh, Owned, Ragged, Shard, TensorSpec
from dispatcher.local import spread
from dispatcher.plan import plan_transfer
from dispatcher.transport.tcp import TcpTransport, listen

PLAN_GOAL_SECONDS: Final = 1.0
_RANKS: Final = 1024
_SAMPLES: Final = 32 * 1024


def exchanged(source: Layout, target: Layout, arrays: dict[int, Any]) -> int:
    """Return the bytes that the ranks of a group, threads of this process, really sent each other."""
    plan = plan_transfer(source, target)
    listeners = {rank: listen() for rank in plan.ranks}
    addresses = {rank: listener.getsockname()[:2] for rank, listener in listeners.items()}
    sent: dict[int, int] = {}

    def one(rank: int) -> None:
        with TcpTransport(rank, addresses, listener=listeners[rank], secret=b"benchmark") as group:
            group.exchange(plan, arrays.get(rank, {}))
            sent[rank] = sum(group.report.sent.values())

    threads = [threading.Thread(target=one, args=(rank,)) for rank in plan.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent[rank] for rank in plan.ranks)


def counted_bytes(small: bool) -> tuple[dict[str, Any], list[str]]:
    """Bytes sent against the least that can be, and against sending every copy of a source that is replicated over four ranks."""
    lengths = np.random.default_rng(3).integers(0, 64 if small else 2048, 256)
    made_by = Owned(np.arange(len(lengths)) % 2)
    names = [("tokens", "int32"), ("log_probs", "float32"), ("returns", "float32")]

    def layout(mesh: Mesh, owned: Owned) -> Layout:
        return Layout(mesh, [TensorSpec(n, d, Ragged(lengths), dp=owned) for n, d in names])

    source = layout(Mesh(dp=2, tp=4), made_by)
    target = layout(Mesh(dp=4, ranks=(8, 9, 10, 11)), balanced(lengths, 4))
    whole = {name: np.zeros(int(lengths.sum()), dtype) for name, dtype in names}
    plan, sent = plan_transfer(source, target), exchanged(source, target, spread(source, whole))
    found = {
        "sent": sent,
        "bound": plan.bytes_bound,
        "every_copy": plan.bytes_every_copy,
        "share_of_every_copy": round(sent / plan.bytes_every_copy, 4),
    }
    print(found)
    missed = ["more bytes than the bound"] if sent != plan.bytes_bound else []
    return found, missed + (["more than a quarter"] if 4 * sent > plan.bytes_every_copy else [])


def planning(small: bool) -> tuple[dict[str, Any], list[str]]:
    """Seconds of one plan between layouts of many ranks and samples: by owners, and by chunks."""
    ranks, samples = (64, 2048) if small else (_RANKS, _SAMPLES)
    random = np.random.default_rng(5)
    lengths = random.integers(1, 32_768, samples)

    def layout(placement: Owned | Shard, first: int) -> Layout:
        mesh = Mesh(dp=ranks, ranks=range(first, first + ranks))
        return Layout(mesh, [TensorSpec("tokens", "int32", Ragged(lengths), dp=placement)])

    owners = Owned(random.integers(0, ranks, samples))
    began = time.perf_counter()
    evenly = balanced(lengths, ranks)
    balancing = time.perf_counter() - began
    seconds = {}
    for name, placement in (("balanced", evenly), ("chunks", Shard(0))):
        began = time.perf_counter()
        plan = plan_transfer(layout(owners, 0), layout(placement, ranks))
        seconds[name] = round(time.perf_counter() - began, 3)
        plan.for_rank(0)
        if plan.bytes_crossing != plan.bytes_bound:
            raise SystemExit("a plan moves more bytes than it has to")
    found = {
        "ranks": [ranks, ranks],
        "samples": samples,
        "plan_seconds": seconds,
        "balancing_seconds": round(balancing, 3),
    }
    print(found)
    worst = max(seconds.values())
    return found, [f"{worst} s > {PLAN_GOAL_SECONDS} s"] if worst > PLAN_GOAL_SECONDS else []
