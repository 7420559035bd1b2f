"""Use of GPUs: utilisation and memory of each card and each held chunk, by NVML.

Node workers measure their cards and report them with each heartbeat (`metrics.reading.GpuReading`). A figure exists only
where a card was measured within the last seconds: a declared GPU has no card, and a silent node has no
figures. Neither is ever 0 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import msgspec

from tangram_web.live.capacity import as_ranges, numbers_in
from tangram_web.metrics.reading import GpuReading


class GpuState(StrEnum):
    """Whether figures of a GPU exist."""

    MEASURED = "measured"
    #: Declared: no card is behind it.
    SIMULATED = "simulated"
    UNMEASURED = "unmeasured"


#: What pages say where there is no figure.
SAYS: Final = {
    GpuState.MEASURED: "",
    GpuState.SIMULATED: "no card: simulated",
    GpuState.UNMEASURED: "no measurement",
}


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one GPU."""

    node: str
    pool: str
    gpu: int
    #: The GPUs of the chunk that actions hold it in, as ranges; empty: no action holds it.
    chunk: str
    state: GpuState
    busy_ratio: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    #: Wall clock of the heartbeat that reported it.
    measured_at: float | None = None


class UseRow(msgspec.Struct, frozen=True, kw_only=True):
    """Use of some GPUs of one node together: a row of a page."""

    node: str
    #: As ranges.
    gpus: str
    count: int
    chunk: str
    #: The mean over the GPUs; None where it is unknown of one.
    busy_ratio: float | None
    #: Sums over the GPUs; None where one is unknown.
    used_bytes: int | None
    total_bytes: int | None
    #: The oldest of the GPUs.
    measured_at: float | None
    #: Why there is no figure; empty where there is one.
    says: str


def gpu_uses(
    nodes: Iterable[Mapping[str, Any]],
    held: Iterable[Mapping[str, Any]],
    readings: Iterable[GpuReading],
) -> list[GpuUse]:
    """Return the use of each GPU, by node and number.

    ``nodes`` and ``held`` are the rows of the topics ``nodes`` and ``holders``; ``readings``: of live workers.
    """
    measured = {(each.node, each.gpu): each for each in readings}
    chunks = {
        (row["name"], gpu): holder["units"]
        for row in held
        for holder in row["holders"]
        if holder["kind"] == "gpu"
        for gpu in numbers_in(holder["units"])
    }
    return [
        _use(node, gpu, chunks.get((node["name"], gpu), ""), measured.get((node["name"], gpu)))
        for node in sorted(nodes, key=lambda node: str(node["name"]))
        for group in node["gpus"]["groups"]
        for gpu in numbers_in(group)
    ]


def _use(node: Mapping[str, Any], gpu: int, chunk: str, reading: GpuReading | None) -> GpuUse:
    place = {"node": node["name"], "pool": node["pool"], "gpu": gpu, "chunk": chunk}
    # By the rule of the probe, declared GPUs are marked as oversubscribed, and real ones never are.
    if node["gpus"].get("oversubscribed"):
        return GpuUse(**place, state=GpuState.SIMULATED)
    if reading is None or node["state"] == "lost":
        return GpuUse(**place, state=GpuState.UNMEASURED)
    return GpuUse(
        **place,
        state=GpuState.MEASURED,
        busy_ratio=reading.busy_ratio,
        used_bytes=reading.used_bytes,
        total_bytes=reading.total_bytes,
        measured_at=reading.at,
    )


def card_rows(uses: Sequence[GpuUse]) -> list[UseRow]:
    """Return one row for each card, and one for all GPUs of a node that are simulated."""
    rows = []
    for (_, simulated), found in groupby(uses, lambda use: (use.node, use.state is GpuState.SIMULATED)):  # fmt: skip
        group = list(found)
        rows += [combined(group)] if simulated else [combined([use]) for use in group]
    return rows


def chunk_rows(uses: Iterable[GpuUse]) -> list[UseRow]:
    """Return one row for each chunk that actions hold."""
    chunks: defaultdict[tuple[str, str], list[GpuUse]] = defaultdict(list)
    for use in uses:
        if use.chunk:
            chunks[use.node, use.chunk].append(use)
    return [combined(found) for found in chunks.values()]


def node_rows(uses: Iterable[GpuUse]) -> dict[str, UseRow]:
    """Return the use of all GPUs of each node that has some, by the name of the node."""
    return {node: combined(list(found)) for node, found in groupby(uses, key=lambda use: use.node)}


def combined(uses: Sequence[GpuUse]) -> UseRow:
    """Return the use of GPUs of one node together; ``uses`` is not empty."""
    states = {use.state for use in uses}
    gap = next((state for state in SAYS if state in states and SAYS[state]), None)
    chunks = {use.chunk for use in uses}
    busy = _known(use.busy_ratio for use in uses)
    used = _known(use.used_bytes for use in uses)
    total = _known(use.total_bytes for use in uses)
    times = _known(use.measured_at for use in uses)
    return UseRow(
        node=uses[0].node,
        gpus=as_ranges(tuple(use.gpu for use in uses)),
        count=len(uses),
        chunk=chunks.pop() if len(chunks) == 1 else "",
        busy_ratio=sum(busy) / len(busy) if busy else None,
        used_bytes=int(sum(used)) if used else None,
        total_bytes=int(sum(total)) if total else None,
        measured_at=min(times, default=None),
        says=SAYS[gap] if gap else "",
    )


def _known(values: Iterable[float | None]) -> list[float]:
    """Return the values; none at all where one is unknown, since a sum of the others would be a false figure."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def use_body(uses: Sequence[GpuUse]) -> dict[str, Any]:
    """Return the body of the topic ``gpus``: rows of cards and of chunks."""
    return {
        "cards": [msgspec.structs.asdict(row) for row in card_rows(uses)],
        "chunks": [msgspec.structs.asdict(row) for row in chunk_rows(uses)],
    }
