"""Interfaces between the scheduler and the managers of resources.

Theory of operation. A manager has two halves. Its **ledger** is pure: inside a cycle it answers at
once what fits and which units an action gets; it is part of the loop and is rebuilt from the
journal. Its **driver** does the work on a node, which may take long. They never call each other:
the loop turns an allocation into a `RunOrder`, the node turns a driver's `RunReport` into an event.
Every implementation passes `tests/conformance/`.

Rules for ledgers: `ledgers`; for drivers: `drivers`. Messages: `orders`. Services in GPU memory:
`residency`. Registration of both halves: `drivers`.
"""

from __future__ import annotations

from domain.ports.drivers import (
    Archiving,
    DiskUsing,
    Driver,
    DriverContext,
    EnvironmentDisk,
    Forking,
    Manager,
    Parking,
    Protecting,
    Proxying,
    Repairing,
    ResponseStream,
    ResponseStreams,
    Snapshotting,
)
from domain.ports.files import (
    DirectoryListing,
    EnvironmentFiles,
    FileFacts,
    FileKind,
    FileReader,
    FileServing,
    FileWriter,
    UnpackedArchive,
)
from domain.ports.ledgers import (
    ChunkedLedger,
    Ledger,
    LedgerFactory,
    LocalLedger,
    ObservedLedger,
    PacedLedger,
    ResizableLedger,
    SeatLedger,
    ShapedLedger,
    SharingLedger,
    provides,
)
from domain.ports.orders import (
    ExecResult,
    Leftover,
    PrepareOrder,
    RewardFile,
    RunOrder,
    RunReport,
    SessionResult,
)
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
    "Archiving",
    "ChunkedLedger",
    "DirectoryListing",
    "DiskUsing",
    "Driver",
    "DriverContext",
    "EnvironmentDisk",
    "EnvironmentFiles",
    "Evicting",
    "ExecResult",
    "FileFacts",
    "FileKind",
    "FileReader",
    "FileServing",
    "FileWriter",
    "Forking",
    "HostDriver",
    "HostingLedger",
    "Ledger",
    "LedgerFactory",
    "Leftover",
    "LocalLedger",
    "Manager",
    "Measuring",
    "MemoryUse",
    "ObservedLedger",
    "PacedLedger",
    "Parking",
    "PrepareOrder",
    "Preparing",
    "Protecting",
    "Proxying",
    "Repairing",
    "ResizableLedger",
    "ResponseStream",
    "ResponseStreams",
    "RewardFile",
    "RunOrder",
    "RunReport",
    "SeatLedger",
    "SessionResult",
    "ShapedLedger",
    "SharingLedger",
    "Snapshotting",
    "UnitUse",
    "UnpackedArchive",
    "provides",
]  # fmt: skip
