"""What the launcher of Ray says of instances that are lost or end, from what Ray says, without a Ray."""

from __future__ import annotations

from typing import Any

import pytest

from managers.launch import ray_helper
from managers.launch.ray_helper import ClusterView, described, killed_at

KEY = "i/g/g-1"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is stored in Ray; ``clock`` is the time."""
    stored: dict[str, Any] = {"clock": 1000.0}
    monkeypatch.setattr(ray_helper, "get", stored.get)
    monkeypatch.setattr(ray_helper, "put", stored.__setitem__)
    monkeypatch.setattr(ray_helper, "now", lambda: stored["clock"])
    return stored


def view(state: str) -> ClusterView:
    seen = ClusterView.__new__(ClusterView)
    seen.nodes = {"n": {"NodeName": "m1", "Alive": True}}
    seen.actors, seen.draining = {KEY}, {}
    bundle = {"CPU": 2.0, "tangram": 1.0}
    seen.groups = {
        KEY: {"state": state, "bundles": {0: bundle}, "bundles_to_node_id": {0: "n"}},
    }
    return seen


def test_one_that_lost_its_machine_waits_and_has_failed_after_a_minute(
    store: dict[str, Any],
) -> None:
    first = described(KEY, view("RESCHEDULING"), None, None)
    assert first["state"] == "pending"
    assert (
        first["reason"] == "its machine left Ray, and no machine of Ray has free: CPU 2, tangram 1"
    )
    store["clock"] += 59
    assert described(KEY, view("RESCHEDULING"), None, None)["state"] == "pending"
    store["clock"] += 2
    assert described(KEY, view("RESCHEDULING"), None, None)["state"] == "failed"
    running = {"state": "running", "starts": 2, "reason": ""}
    assert described(KEY, view("CREATED"), running, None)["state"] == "running"
    assert described(KEY, view("RESCHEDULING"), None, None)["state"] == "pending", "lost again"


def test_one_that_has_no_machine_yet_waits_for_ever(store: dict[str, Any]) -> None:
    described(KEY, view("PENDING"), None, None)
    store["clock"] += 10_000
    assert described(KEY, view("PENDING"), None, None)["state"] == "pending"


def test_an_end_is_over_once_the_guard_says_so(store: dict[str, Any]) -> None:
    ending = {"at": 1000.0}
    assert killed_at(KEY, "CREATED", {"state": "running"}, ending) is None
    assert killed_at(KEY, "CREATED", {"state": "gone"}, ending) == 0.0
    assert killed_at(KEY, "CREATED", {"state": "gone"}, {**ending, "killed": 1010.0}) == 0.0


def test_an_actor_that_does_not_answer_its_end_is_killed_after_a_minute(
    store: dict[str, Any],
) -> None:
    assert killed_at(KEY, "CREATED", None, {"at": 1000.0}) is None
    store["clock"] = 1061.0
    assert killed_at(KEY, "CREATED", None, {"at": 1000.0}) == 1061.0
    store["clock"] = 1099.0
    assert killed_at(KEY, "CREATED", None, {"at": 1000.0, "killed": 1061.0}) == 1061.0


def test_a_machine_that_is_cut_off_has_a_minute_to_end_its_actor(store: dict[str, Any]) -> None:
    described(KEY, view("RESCHEDULING"), None, None)
    store["clock"] += 40
    assert killed_at(KEY, "RESCHEDULING", None, {"at": 1040.0}) == 1060.0
    assert killed_at(KEY, "PENDING", None, {"at": 1040.0}) == 0.0
