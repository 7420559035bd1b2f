"""Cost: predicted seconds of each way to carry out a plan, and the choice among them. The way has no effect on the result.

- ``nothing``: no byte crosses.
- ``pairs``: each pair that has bytes exchanges them in a message of its own.
- ``all-to-all``: one collective call with a split for each rank. A rank has a small cost for each other rank, whether they exchange anything or not, and packs.
- ``gather-scatter``: all bytes go through one rank. Its link carries them twice; so it is right for a few bytes among many ranks only.

The time of the bytes is that of the busiest link: each host has one, which its ranks share, with the same bandwidth in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from dispatcher.errors import LayoutError
from dispatcher.placements import Integers
from dispatcher.transfer_plan import TransferPlan

Strategy: TypeAlias = Literal["nothing", "pairs", "all-to-all", "gather-scatter"]
NOTHING: Final = "nothing"
PAIRS: Final = "pairs"
ALL_TO_ALL: Final = "all-to-all"
GATHER_SCATTER: Final = "gather-scatter"
#: EARL, Table 1: the tensors of a batch for each token of context and GPU.
CONTEXT_TOKEN_BYTES: Final = 16_000


@dataclass(frozen=True)
class Links:
    """What messages and bytes cost. The defaults are those of TCP on a network of 200 Gbit/s.

    Bandwidths are bytes per second: of one host's link, between ranks of one host, and of copying within memory. ``latency`` is the seconds of one
    message of a pair or of the start of a collective call, ``peer_latency`` those of one more rank in such a call.
    """

    bandwidth: float = 25e9
    latency: float = 200e-6
    local_bandwidth: float = 10e9
    copy_bandwidth: float = 5e9
    peer_latency: float = 20e-6

    def __post_init__(self) -> None:
        for name in ("bandwidth", "local_bandwidth", "copy_bandwidth"):
            if not getattr(self, name) > 0:
                raise LayoutError(name, f"is {getattr(self, name)}; give bytes per second above 0")
        for name in ("latency", "peer_latency"):
            if not getattr(self, name) >= 0:
                raise LayoutError(name, f"is {getattr(self, name)}; give seconds from 0")


def predict(plan: TransferPlan, links: Links) -> dict[Strategy, float]:
    """Return the predicted seconds of each strategy that the plan allows."""
    if not plan.bytes_crossing:
        return {NOTHING: 0.0}
    senders, receivers, nbytes = plan.pairs
    size = len(plan.ranks)
    messages = np.bincount(senders, minlength=size) + np.bincount(receivers, minlength=size)
    sent = np.bincount(senders, nbytes, size)
    received = np.bincount(receivers, nbytes, size)
    packing = float((sent + received).max()) / links.copy_bandwidth
    direct = _seconds(plan, links, senders, receivers, nbytes)
    root = np.zeros(len(senders), np.int64)
    gathered = _seconds(plan, links, senders, root, np.where(senders == 0, 0, nbytes))
    scattered = _seconds(plan, links, root, receivers, np.where(receivers == 0, 0, nbytes))
    peers = int((sent > 0)[1:].sum() + (received > 0)[1:].sum())
    return {
        PAIRS: int(messages.max()) * links.latency + direct,
        ALL_TO_ALL: links.latency + (size - 1) * links.peer_latency + direct + packing,
        GATHER_SCATTER: 2 * links.latency + peers * links.peer_latency + gathered + scattered,
    }


def choose(plan: TransferPlan, links: Links) -> Strategy:
    """Return the strategy with the least predicted seconds."""
    predicted = predict(plan, links)
    return min(predicted, key=lambda strategy: predicted[strategy])


def gather_scatter_bytes(plan: TransferPlan) -> tuple[int, int]:
    """Return the bytes that the lowest rank receives and then sends where all bytes go through it."""
    senders, receivers, nbytes = plan.pairs
    return int(nbytes[senders != 0].sum()), int(nbytes[receivers != 0].sum())


def context_bytes(context: int, gpus: int) -> int:
    """Return the bytes of a batch at a context length, by Table 1 of EARL: 16,000 for each token of context and GPU."""
    return CONTEXT_TOKEN_BYTES * context * gpus


def _seconds(
    plan: TransferPlan, links: Links, senders: Integers, receivers: Integers, nbytes: Integers
) -> float:
    """Return the time of the busiest link, or within the busiest rank's host."""
    numbers = {name: number for number, name in enumerate(sorted(set(plan.hosts.values())))}
    host = np.array([numbers[plan.hosts[rank]] for rank in plan.ranks], np.int64)
    between = host[senders] != host[receivers]
    outward = np.bincount(host[senders[between]], nbytes[between])
    inward = np.bincount(host[receivers[between]], nbytes[between])
    link = max(outward.max(initial=0), inward.max(initial=0)) / links.bandwidth
    within = np.bincount(senders[~between], nbytes[~between])
    into = np.bincount(receivers[~between], nbytes[~between])
    return float(max(link, max(within.max(initial=0), into.max(initial=0)) / links.local_bandwidth))
