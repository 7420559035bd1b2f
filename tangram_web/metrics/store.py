"""Where totals lie between two readings: one value in Redis, replaced as a whole.

Totals and the position up to which they count are one value, so a crash between two saves makes
the reader fold the same entries again into the older totals: nothing is lost or counted twice. The
position also holds the journal, as that of the rows does.
"""

from __future__ import annotations

import msgspec
import redis

from domain.keys import Keys
from tangram_web.metrics.totals import Totals

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
        """Return the stored totals; new ones when there are none."""
        stored = self._client.get(self._keys.metrics)
        return _decode(stored) if isinstance(stored, bytes) else Totals()

    def save(self, totals: Totals) -> None:
        """Replace the stored totals, and let go of the journal before them."""
        with self._client.pipeline() as pipeline:
            pipeline.set(self._keys.metrics, _encode(totals))
            pipeline.hset(self._keys.positions, CONSUMER, totals.position)
            pipeline.execute()
