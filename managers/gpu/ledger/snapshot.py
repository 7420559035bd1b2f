"""Snapshot of a chunk ledger: what does not follow from its allocations, as bytes."""

from __future__ import annotations

import msgspec

from domain.allocation import Home
from managers.gpu.ledger.residents import Resident


class ChunkLedgerSnapshot(msgspec.Struct, frozen=True):
    """Stored state of a ledger."""

    uses: int
    residents: list[Resident]
    #: Holder → the service that works for it.
    serving: dict[str, str]
    failed: list[Home] = msgspec.field(name="shunned", default_factory=list)


encode = msgspec.msgpack.Encoder(order="deterministic").encode
decode = msgspec.msgpack.Decoder(ChunkLedgerSnapshot).decode
