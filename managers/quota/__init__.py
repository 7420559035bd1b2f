"""Resources that are only counted: memory, API concurrency, licences."""

from __future__ import annotations

from managers.quota.ledger.counter import CounterLedger

__all__ = ["CounterLedger"]
