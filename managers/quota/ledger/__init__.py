"""Ledgers of counted amounts, and of APIs with quotas."""

from __future__ import annotations

from managers.quota.ledger.api import ApiLedger
from managers.quota.ledger.counter import CounterLedger

__all__ = ["ApiLedger", "CounterLedger"]
