"""Objects made for every action are data, which the garbage collector does not track (decision 0041)."""

from __future__ import annotations

import gc
from typing import get_args

import pytest

from domain.action import Action, ExecSpec, Timing
from domain.allocation import Allocation
from domain.apis import CallSpec
from domain.decisions import Decision
from domain.events import Event
from scheduler.core.state.live import LiveAction
from tests.builders import an_action


@pytest.mark.parametrize(
    "kind",
    [
        Action, Allocation, CallSpec, ExecSpec, LiveAction, Timing, *get_args(Event), *get_args(Decision),
    ],
)  # fmt: skip
def test_its_structs_say_so(kind):
    assert kind.__struct_config__.gc is False


def test_the_garbage_collector_does_not_track_a_waiting_action(core):
    scenario = core()
    scenario.submit(an_action("running", cost={"cpu": 8}), an_action("waits", metadata={"a": [1]}))

    live = scenario.machine.live("waits")

    assert not gc.is_tracked(live)
    assert not gc.is_tracked(live.action)
