"""Where totals lie between two readings: one value in Redis, replaced as a whole.

Totals and the position up to which they count are one value, so a crash between two saves makes
the reader fold the same entries again into the older totals: nothing is lost or counted twice. The
position also holds the journal, as that of the rows does.
"""

from __future__ import annotations

import logging

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.metrics.totals import Totals

log = logging.getLogger(__name__)

#: Our name among the journal's consumers.
CONSUMER = "metrics"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Totals).decode


class MetricsStore:
    """Loads and saves totals."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def load(self) -> Totals:
        """Return the stored totals; new ones when there are none, or none that can be read.

        Counters that begin anew are what Prometheus expects of a restart.
        """
        stored = self._client.get(self._keys.metrics)
        if not isinstance(stored, bytes):
            return Totals()
        try:
            return _decode(stored)
        except msgspec.DecodeError as error:
            log.error("totals of another version cannot be read, and begin anew: %s", error)
            return Totals()

    def save(self, totals: Totals) -> None:
        """Replace the stored totals, and let go of the journal before them."""
        with self._client.pipeline() as pipeline:
            pipeline.set(self._keys.metrics, _encode(totals))
            pipeline.hset(self._keys.positions, CONSUMER, totals.position)
            pipeline.execute()
