"""A *modelled* profile of Qwen2.5-72B on nodes of eight H100 with 80 GB, as Figure 3 of EARL has it. Nothing of it was measured here.

One engine decodes so many responses of one context length on TP GPUs. A step of all rows reads the weights and the keys and values once, and
sums 2 × 80 times over the GPUs::

    seconds(rows) = (weights + rows · context · kv) / (TP · bandwidth) + 160 · all_reduce(TP)
    tokens per GPU and second = rows / (TP · seconds(rows))

Rows whose keys and values have no room on the GPUs wait in host memory: so many decode at once as have room. Where host memory, too, is short, the
degree is out of memory.

| constant | value | from |
|---|---|---|
| weights, kv of a token | 145.4 GB, 320 KiB | the model: 72.7e9 weights of 2 bytes; 80 layers, 8 heads of 128, 2 bytes |
| bandwidth, memory | 3.35 TB/s, 80 GB | the card |
| `BANDWIDTH_SHARE` | 0.8 | assumed |
| `ALL_REDUCE_SECONDS[4]` | 15 µs | assumed, as small sums take over NVLink |
| `ALL_REDUCE_SECONDS[8]` | 24.9 µs | **fitted** to the paper's +31 % of TP4, at 32 × 2,048 |
| `MEMORY_SHARE` | 0.820 | **fitted** to the paper's +5 % of TP8, at 32 × 16,384 |
| `HOST_BYTES` | 200 GB for each GPU | **chosen** within the 143 to 314 GB with which, of the paper's cells, TP4 lacks memory at 128 × 32,768 alone |

What the fit does not have: the paper says 5 % of 16K and 32K alike, where the model says +47 % at 32K, as TP4 has room for a third of the
responses at once. No choice of these constants gives both: beyond the room of TP4 its rate falls as the context grows. And more responses move its border to shorter
contexts. Of the paper's figure only the values in its text were readable.
"""

from __future__ import annotations

from typing import Final

from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SwitchCost,
)

IDENTITY: Final = ProfileIdentity("8 × H100-80GB (modelled)", "Qwen2.5-72B (modelled)", "modelled")
SOURCE: Final = "modelled: benchmarks.parallelism.modelled"

LAYERS: Final = 80
WEIGHT_BYTES: Final = 72.7e9 * 2
#: Keys and values, layers, heads, their size, bytes of a number.
KV_BYTES: Final = 2 * LAYERS * 8 * 128 * 2
GPU_BYTES: Final = 80e9
BANDWIDTH: Final = 3.35e12

BANDWIDTH_SHARE: Final = 0.8
ALL_REDUCE_SECONDS: Final = {4: 15e-6, 8: 24.905e-6}
MEMORY_SHARE: Final = 0.82045
HOST_BYTES: Final = 200e9
#: Seconds of a change between TP4 and TP8, modelled: the weights over PCIe at 25 GB/s for each of 8 GPUs, and 10 s of start.
SWITCH_SECONDS: Final = 10.0 + WEIGHT_BYTES / (8 * 25e9)

DEGREES: Final = (Parallelism(4), Parallelism(8))
CONTEXTS: Final = (2048, 4096, 8192, 16_384, 32_768)
RESPONSES: Final = (32, 64, 128)
#: Stored with each result.
BESIDE_THE_PAPER: Final = (
    "fitted: TP4 +31 % at 32 × 2,048, TP8 +5 % at 32 × 16,384. Not fitted: at 32 × 32,768 the model says TP8 +47 %, the paper"
    " 5 % of 16K and 32K alike; so gains at 32K are no prediction"
)


def step_seconds(tp: int, rows: float, context: int) -> float:
    """Return the modelled seconds in which each of ``rows`` gets one token."""
    read = (WEIGHT_BYTES + rows * context * KV_BYTES) / tp
    return read / (BANDWIDTH * BANDWIDTH_SHARE) + 2 * LAYERS * ALL_REDUCE_SECONDS[tp]


def modelled_cell(degree: Parallelism, context: int, responses: int) -> ProfileCell:
    """Return a modelled cell."""
    tp = degree.tp
    room = tp * (GPU_BYTES * MEMORY_SHARE - WEIGHT_BYTES / tp)
    wanted = responses * context * KV_BYTES
    if wanted - room > HOST_BYTES * tp:
        return ProfileCell(degree, context, responses, oom=True)
    rows = min(float(responses), room / (context * KV_BYTES))
    used = WEIGHT_BYTES / tp + min(wanted, room) / tp
    rate = rows / (tp * step_seconds(tp, rows, context))
    return ProfileCell(
        degree, context, responses, tokens_per_gpu_second=rate, peak_memory_bytes=int(used)
    )


def modelled_profile() -> ParallelismProfile:
    """Return the modelled profile, with the modelled cost of changes."""
    cells = tuple(
        modelled_cell(degree, context, responses)
        for degree in DEGREES
        for context in CONTEXTS
        for responses in RESPONSES
    )
    switches = tuple(
        SwitchCost(to, SWITCH_SECONDS, origin)
        for origin in DEGREES
        for to in DEGREES
        if origin != to
    )
    return ParallelismProfile(IDENTITY, cells, switches, SOURCE)
