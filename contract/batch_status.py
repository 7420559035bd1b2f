"""Batches as Redis stores them for lists: written by web processes and rollout workers, read by the API, pages and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from contract.batch_views import BatchPull, BatchSummary

#: Fields of `domain.redis_keys.Keys.batch_totals`.
BATCHES_MADE = "made"
SENT_BY_WORKERS = "bytes/worker"
SENT_BY_GATEWAY = "bytes/gateway"


class StoredBatch(msgspec.Struct, kw_only=True):
    """What is stored of a batch for lists. Times are seconds since the epoch."""

    id: str
    created: float
    expires: float
    #: Of the stored manifest.
    stored_bytes: int
    summary: BatchSummary


_stored = msgspec.json.Decoder(StoredBatch)


def stored_batches(texts: Iterable[bytes]) -> list[StoredBatch]:
    """Return batches from their stored form; those of another version are left out."""
    found: list[StoredBatch] = []
    for text in texts:
        try:
            found.append(_stored.decode(text))
        except msgspec.DecodeError:
            continue
    return found


def newest(stored: Iterable[StoredBatch], limit: int) -> list[StoredBatch]:
    """Return the newest batches."""
    return sorted(stored, key=lambda each: (-each.created, each.id))[:limit]


def pulls_of(stored: Mapping[bytes, bytes]) -> list[BatchPull]:
    """Return what was pulled, by rank, then by worker; fields are ``RANK/WORKER``."""
    found = []
    for field, count in stored.items():
        rank, _, worker = field.decode().partition("/")
        found.append(BatchPull(worker, int(rank), int(count)))
    return sorted(found, key=lambda each: (each.rank, each.worker))
