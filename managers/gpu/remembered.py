"""What a ledger of chunks cannot derive from who has what, as bytes of a snapshot."""

from __future__ import annotations

import msgspec

from domain.allocation import Home
from managers.gpu.residents import Resident


class Remembered(msgspec.Struct, frozen=True):
    """The memory of a ledger."""

    uses: int
    residents: list[Resident]
    #: Holder → the service that works for it.
    serving: dict[str, str]
    #: Where services could not be brought.
    shunned: list[Home] = []


encode = msgspec.msgpack.Encoder(order="deterministic").encode
decode = msgspec.msgpack.Decoder(Remembered).decode
