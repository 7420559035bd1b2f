"""Facts keep their stored names, so that journals of earlier versions load."""

from __future__ import annotations

import msgspec
import pytest

from domain import rollout_events
from domain.backends import BackendPool, LlmBackend
from domain.codec import encode
from domain.decisions import AssignRollout, Decision, Degraded, FinishRollout, SetBackends
from domain.events import Event
from domain.ids import ResourceId
from domain.limits import Degradation
from domain.rollouts import Rollout, RolloutId, RolloutOutcome, RolloutResult


def test_a_degradation_is_stored_as_before():
    decision = Degraded(ResourceId("api:search"), Degradation(detail="the circuit is open"))

    stored = msgspec.msgpack.decode(encode(decision))

    assert stored == {
        "decision": "TurnedBad",
        "resource": "api:search",
        "turn": {"detail": "the circuit is open"},
    }
    assert msgspec.convert(stored, Decision) == decision


ROLLOUT = Rollout(id=RolloutId("rol_1"), project="p", task="t", handler="math")
STORED_ROLLOUT = {"id": "rol_1", "project": "p", "task": "t", "handler": "math"}
RESULT = RolloutResult(RolloutOutcome.COMPLETED, reward=1.0)


@pytest.mark.parametrize(
    ("fact", "union", "stored"),
    [
        (
            rollout_events.RolloutsSubmitted(rollouts=(ROLLOUT,), accepted_at=5.0),
            Event,
            {"event": "RolloutsSubmitted", "rollouts": [STORED_ROLLOUT], "accepted_at": 5.0},
        ),
        (
            rollout_events.RolloutFinished(
                rollout_id=ROLLOUT.id, worker="w1", attempt=2, result=RESULT
            ),
            Event,
            {
                "event": "RolloutFinished", "rollout_id": "rol_1", "worker": "w1", "attempt": 2,
                "result": {"outcome": "completed", "reward": 1.0},
            },
        ),
        (
            rollout_events.BackendsChanged(
                pool="policy", put=(LlmBackend(name="b1", address="http://b1", seats=4),)
            ),
            Event,
            {
                "event": "BackendsChanged", "pool": "policy",
                "put": [{"name": "b1", "address": "http://b1", "seats": 4}],
            },
        ),
        (
            AssignRollout(ROLLOUT, "w1", 3, 2),
            Decision,
            {
                "decision": "AssignRollout", "rollout": STORED_ROLLOUT, "worker": "w1",
                "incarnation": 3, "attempt": 2,
            },
        ),
        (
            FinishRollout(rollout_id=ROLLOUT.id, project="p", task="t", result=RESULT),
            Decision,
            {
                "decision": "FinishRollout", "rollout_id": "rol_1", "project": "p", "task": "t",
                "result": {"outcome": "completed", "reward": 1.0},
            },
        ),
        (
            SetBackends(
                "policy", BackendPool((LlmBackend(name="b", address="http://b", number=1),))
            ),
            Decision,
            {
                "decision": "SetBackends", "pool": "policy",
                "backends": {"backends": [{"name": "b", "address": "http://b", "number": 1}]},
            },
        ),
    ],
)  # fmt: skip
def test_facts_about_rollouts_are_stored_under_these_names(fact, union, stored):
    assert msgspec.msgpack.decode(encode(fact)) == stored
    assert msgspec.convert(stored, union) == fact
