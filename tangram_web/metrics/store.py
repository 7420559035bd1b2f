"""Store of the totals: one value in Redis, replaced as a whole.

Totals and the position up to which they count are one value, so after a crash between two saves the
same entries are folded again into the older totals: nothing is lost or counted twice. The journal
is not trimmed beyond the position, as with that of the rows.
"""

from __future__ import annotations

import logging

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.metrics.totals import Totals

log = logging.getLogger(__name__)

#: Name among the consumers of the journal.
CONSUMER = "metrics"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Totals).decode


class MetricsStore:
    """Loads and saves totals."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def load(self) -> Totals:
        """Return the stored totals; empty ones if none are stored or they cannot be read.

        Prometheus handles the reset of a counter.
        """
        stored = self._client.get(self._keys.metrics)
        if not isinstance(stored, bytes):
            return Totals()
        try:
            return _decode(stored)
        except msgspec.DecodeError as error:
            log.error("cannot read the stored totals, counters restart at 0: %s", error)
            return Totals()

    def save(self, totals: Totals) -> None:
        """Replace the stored totals, and allow the journal before them to be trimmed."""
        with self._client.pipeline() as pipeline:
            pipeline.set(self._keys.metrics, _encode(totals))
            pipeline.hset(self._keys.positions, CONSUMER, totals.position)
            pipeline.execute()
