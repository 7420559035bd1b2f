"""EngineSpec: the assumed times and sizes of one engine with one model, by parallelism degree.

The numbers are assumptions about an H100-like GPU and Qwen3-like models, not measurements:

| what | how |
|---|---|
| one token of each of B sequences | max(weights / bandwidth, 2 · parameters · B / FLOPS) / degree^0.6 + all-reduce + cache / (bandwidth · degree) |
| prompt | tokens / (rate · degree^0.85); it stalls the worker |
| cache | what the weights leave of ``degree`` GPUs |
| cache on the host | read back at 40 GB/s |
| transfer between workers | 30 GB/s after a fixed time |

The methods have the names and shapes of placement's ``WorkerTimes``: a profile is measured from the spec as from an engine.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec


class EngineSpec(msgspec.Struct, frozen=True):
    """Bytes, bytes per second and seconds of one GPU; degrees scale them."""

    name: str
    parameters: float
    #: Of one token's cache.
    kv_bytes: float
    #: Of a GPU that weights and caches may use.
    memory_bytes: float = 72e9
    bandwidth: float = 2.5e12
    flops: float = 600e12
    #: Tokens of a prompt per second on one GPU.
    prefill_rate: float = 12_000.0
    #: Time of a token falls with degree to this power; 1: no loss.
    tensor_exponent: float = 0.6
    prefill_exponent: float = 0.85
    #: For each doubling of the degree, per token.
    all_reduce_seconds: float = 0.00025
    host_bytes: float = 200e9
    host_bandwidth: float = 40e9
    transfer_bandwidth: float = 30e9
    transfer_latency: float = 0.01

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights, two for each parameter."""
        return 2.0 * self.parameters

    def base_seconds(self, degree: int, batch: int) -> float:
        """Return the seconds of one token of each of ``batch`` sequences, their caches not counted."""
        read = self.weight_bytes / self.bandwidth
        computed = 2.0 * self.parameters * batch / self.flops
        shared = self.all_reduce_seconds * math.log2(degree)
        return float(max(read, computed) / degree**self.tensor_exponent + shared)

    def context_seconds(self, degree: int) -> float:
        """Return the seconds that each token of cache adds to each token sampled."""
        return self.kv_bytes / (self.bandwidth * degree)

    def token_seconds(self, degree: int, batch: int, context_tokens: float) -> float:
        """Return seconds per token of each of ``batch`` sequences that have ``context_tokens`` each."""
        cached = self.context_seconds(degree) * batch * context_tokens
        return self.base_seconds(degree, batch) + cached

    def prefill_seconds(self, degree: int, tokens: int) -> float:
        """Return the seconds that so many uncached tokens of a prompt take."""
        return float(tokens / (self.prefill_rate * degree**self.prefill_exponent))

    def transfer_seconds(self, tokens: int) -> float:
        """Return the seconds that a cache of so many tokens takes between two workers."""
        return self.transfer_latency + tokens * self.kv_bytes / self.transfer_bandwidth

    def load_seconds(self, tokens: int) -> float:
        """Return the seconds that a cache takes from the host to the GPU."""
        return tokens * self.kv_bytes / self.host_bandwidth

    def kv_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on a worker; 0 where the weights do not fit."""
        return max(0.0, (self.memory_bytes * degree - self.weight_bytes) // self.kv_bytes)

    def host_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on the host beside a worker."""
        return self.host_bytes * degree // self.kv_bytes

    def with_cache(self, share: float) -> EngineSpec:
        """Return the same engine whose caches have ``share`` of the bytes: 0.05 never binds, 1 does."""
        return msgspec.structs.replace(self, kv_bytes=self.kv_bytes * share)


def _modelled(name: str, billions: float, layers: int) -> EngineSpec:
    """Return a model with 8 heads of 128 numbers for keys and for values, two bytes each."""
    return EngineSpec(
        name=name,
        parameters=billions * 1e9,
        kv_bytes=layers * 2 * 8 * 128 * 2,
        prefill_rate=12_000.0 * 14.8 / billions,
        all_reduce_seconds=0.00025 * layers / 40,
    )


#: Models of Heddle's evaluation, as they are assumed here.
MODELLED: Final = {
    "8B": _modelled("8B", 8.2, 36),
    "14B": _modelled("14B", 14.8, 40),
    "32B": _modelled("32B", 32.8, 64),
}
