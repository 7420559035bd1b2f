"""The ledger of GPU chunks and of the services cached on them; rules in `managers.gpu`."""

from __future__ import annotations

from managers.gpu.ledger.chunk_ledger import ChunkLedger

__all__ = ["ChunkLedger"]
