"""The seam between the scheduler and what it manages.

Theory of operation. A manager is cut in two. Its **ledger** is pure: it answers at once, inside a
cycle, what fits and which units an action gets; it lives in the loop and is rebuilt from the
journal. Its **driver** does the work on a node and may take as long as it likes. They never meet:
the loop turns a ledger's answer into a `RunOrder`, the node turns a driver's `RunReport` into an
event. Every implementation passes `tests/conformance/`.

Rules for ledgers: `ledgers`; for drivers: `drivers`. What they exchange: `orders`; what more there is
where services stay in the memory of GPUs: `hosting`; how both halves are found: `managers`.
"""

from __future__ import annotations

from domain.ports.drivers import Driver, Passage, Passages, Repairing
from domain.ports.ledgers import (
    Ledger,
    LedgerFactory,
    LocalLedger,
    PacedLedger,
    ResizableLedger,
    Shaped,
)
from domain.ports.managers import DriverContext, Manager
from domain.ports.orders import ExecResult, Leftover, PrepareOrder, RunOrder, RunReport
from domain.ports.residency import (
    Evicting,
    HostDriver,
    HostingLedger,
    Measuring,
    MemoryUse,
    Preparing,
    UnitUse,
)

__all__ = [
    "Driver",
    "DriverContext",
    "Evicting",
    "ExecResult",
    "HostDriver",
    "HostingLedger",
    "Ledger",
    "LedgerFactory",
    "Leftover",
    "LocalLedger",
    "Manager",
    "Measuring",
    "MemoryUse",
    "PacedLedger",
    "Passage",
    "Passages",
    "PrepareOrder",
    "Preparing",
    "Repairing",
    "ResizableLedger",
    "RunOrder",
    "RunReport",
    "Shaped",
    "UnitUse",
]
