"""Roofline profiles: modelled times of declared models on a declared GPU, until an engine is measured.

A token takes the greater of two times, and those of the links:

    memory    weights / (bandwidth · degree^0.6) + batch · context · bytes of cache per token / (bandwidth · degree)
    compute   batch · 2 · parameters / (FLOP/s · degree^0.85)
    links     0 for degree 1; else two all-reduces per layer: latency + batch · hidden · 2 B / link bandwidth

Sources: shapes of Qwen3-8B, -14B and -32B from their model cards (bf16); an H100 SXM has 80 GB, 3.35 TB/s and 989 TFLOP/s by its data
sheet. ASSUMED: 75 % of the bandwidth, 36 % of the FLOP/s, 90 % of the memory, the exponents, 10 µs for an all-reduce, 450 GB/s between
GPUs, 30 GB/s between workers. Directions hold, second digits do not; `EngineProfile.source` says so. What a model cannot say, the
seconds of a restart or a wake, stays None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from domain.engine_profiles import MODELLED, DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.facts import DEGREES
from placement.profiles import ProfiledTimes

#: Points of the tables.
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS: Final = (0, 2048, 8192, 32768, 131072)
PREFILLS: Final = (512, 8192, 131072)

#: How much of further GPUs the weights' reads and the arithmetic gain.
_WEIGHTS_EXPONENT: Final = 0.6
_COMPUTE_EXPONENT: Final = 0.85


class TransformerShape(msgspec.Struct, frozen=True, gc=False):
    """The numbers of a dense transformer that its times depend on."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_size: int
    #: Of a weight and of a cached value.
    value_bytes: int = 2

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of all weights."""
        return self.parameters * self.value_bytes

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.value_bytes


class GpuShape(msgspec.Struct, frozen=True, gc=False):
    """The usable numbers of one GPU and of the links between GPUs."""

    name: str
    bytes_per_second: float
    flops_per_second: float
    memory_bytes: float
    all_reduce_seconds: float
    link_bytes_per_second: float
    transfer_bytes_per_second: float


SHAPES: Final = {
    "8b": TransformerShape("Qwen3-8B", 8.2e9, 36, 4096, 8, 128),
    "14b": TransformerShape("Qwen3-14B", 14.8e9, 40, 5120, 8, 128),
    "32b": TransformerShape("Qwen3-32B", 32.8e9, 64, 5120, 8, 128),
}
H100: Final = GpuShape(
    "H100-like", 0.75 * 3.35e12, 0.36 * 989e12, 0.9 * 80e9, 10e-6, 450e9, 30e9
)  # fmt: skip


def roofline(
    model: str | TransformerShape, gpu: GpuShape = H100, degrees: Iterable[int] = DEGREES
) -> EngineProfile:
    """Return the modelled profile of ``model``; degrees on which its weights do not fit are left out."""
    shape = _shape(model)
    fits = [
        each
        for each in degrees
        if gpu.memory_bytes * each >= shape.weight_bytes + shape.cache_bytes
    ]
    if not fits:
        wrong = f"the weights of {shape.name} fit on no given degree: give a higher one"
        raise InvalidRequest(wrong, pointer="/profile/degrees")
    return EngineProfile(
        degrees=tuple(_of_degree(shape, gpu, degree) for degree in fits),
        source=f"modelled: roofline of {shape.name} on {gpu.name}; not measured",
        transfer_tokens_per_second=gpu.transfer_bytes_per_second / shape.cache_bytes,
    )


def declared_times(profile: EngineProfile | None, modelled: str = "") -> ProfiledTimes:
    """Return the times that a fleet declares: those of its profile, else modelled ones of a declared model (default: the smallest)."""
    return ProfiledTimes(profile or roofline(modelled or MODELLED[0]))


def _shape(model: str | TransformerShape) -> TransformerShape:
    if isinstance(model, TransformerShape):
        return model
    try:
        return SHAPES[model]
    except KeyError:
        wrong = f"{model!r} is not declared: give one of {', '.join(SHAPES)}, or a shape"
        raise InvalidRequest(wrong, pointer="/profile/model") from None


def _of_degree(shape: TransformerShape, gpu: GpuShape, degree: int) -> DegreeProfile:
    rate = gpu.flops_per_second * degree**_COMPUTE_EXPONENT
    return DegreeProfile(
        degree=degree,
        batches=BATCHES,
        contexts=CONTEXTS,
        token_seconds=tuple(
            tuple(token_seconds(shape, gpu, degree, batch, context) for context in CONTEXTS)
            for batch in BATCHES
        ),
        prefill=tuple((tokens, tokens * 2 * shape.parameters / rate) for tokens in PREFILLS),
        kv_tokens=(gpu.memory_bytes * degree - shape.weight_bytes) // shape.cache_bytes,
    )


def token_seconds(
    shape: TransformerShape, gpu: GpuShape, degree: int, batch: int, context_tokens: float
) -> float:
    """Return the modelled seconds per token of each of ``batch`` sequences."""
    memory: float = shape.weight_bytes / (gpu.bytes_per_second * degree**_WEIGHTS_EXPONENT)
    memory += batch * context_tokens * shape.cache_bytes / (gpu.bytes_per_second * degree)
    compute: float = (
        batch * 2 * shape.parameters / (gpu.flops_per_second * degree**_COMPUTE_EXPONENT)
    )
    links = 0.0
    if degree > 1:
        sent = batch * shape.hidden * shape.value_bytes / gpu.link_bytes_per_second
        links = 2 * shape.layers * (gpu.all_reduce_seconds + sent)
    return max(memory, compute) + links
