"""Renamed decisions keep their stored names, so that journals of earlier versions load."""

from __future__ import annotations

import msgspec

from domain.codec import encode
from domain.decisions import Decision, Degraded
from domain.ids import ResourceId
from domain.limits import Degradation


def test_a_degradation_is_stored_as_before():
    decision = Degraded(ResourceId("api:search"), Degradation(detail="the circuit is open"))

    stored = msgspec.msgpack.decode(encode(decision))

    assert stored == {
        "decision": "TurnedBad",
        "resource": "api:search",
        "turn": {"detail": "the circuit is open"},
    }
    assert msgspec.convert(stored, Decision) == decision
