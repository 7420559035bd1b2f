"""Calls of a stage: one key each, bounded limits and observations; retries; the registry of handlers."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rollouts import Stage
from rollout.core.calls import (
    MAX_OBSERVATION_BYTES,
    DivergedFromLog,
    bounded,
    call_key,
    known_call,
    new_call,
    observation,
)
from rollout.core.retries import MOST_SECONDS, PATIENCE_SECONDS, delay_of, is_over
from rollout.handlers.noop import NoopHandler
from rollout.handlers.registry import NoHandler, handlers, load
from rollout.ports import Record
from tests.unit.rollout.builders import a_machine, an_end

MEMBERS = {"kind": "exec", "exec": {"command": ["true"]}}


def test_a_key_names_rollout_generation_stage_and_call():
    assert call_key("rol_1", 2, Stage.RUN, "turn-3") == "rol_1/2/run/turn-3"


def test_a_stored_call_is_found_with_the_members_in_any_order():
    machine = a_machine()
    machine.stored(new_call(machine, "0", {"a": 1, **MEMBERS}, 60.0))

    found = known_call(machine, "0", {**MEMBERS, "a": 1})

    assert found is not None
    assert found.members["timeout_seconds"] == 60.0
    assert known_call(machine, "1", MEMBERS) is None


def test_other_members_under_the_name_of_a_stored_call_are_refused():
    machine = a_machine()
    machine.stored(new_call(machine, "0", MEMBERS, 60.0))

    with pytest.raises(DivergedFromLog, match="call 0 of INIT differs"):
        known_call(machine, "0", {"kind": "exec", "exec": {"command": ["false"]}})


@pytest.mark.parametrize(
    ("asked", "left", "got"), [(None, 60.0, 60.0), (5, 60.0, 5.0), (90, 60.0, 60.0)]
)
def test_an_action_may_not_take_longer_than_its_stage(asked, left, got):
    members = MEMBERS if asked is None else {**MEMBERS, "timeout_seconds": asked}

    record = new_call(a_machine(), "0", members, left)

    assert record.header["members"]["timeout_seconds"] == got


def test_an_observation_of_ten_megabytes_is_cut_and_says_so():
    end = an_end(result={"exit_code": 0, "stdout": "é" * 5_000_000, "stderr": "late"})

    result = bounded(end).result or {}

    assert len(result["stdout"].encode()) == MAX_OBSERVATION_BYTES
    assert result["stderr"] == ""
    assert (result["exit_code"], result["truncated"]) == (0, True)


@given(text=st.text(max_size=40), limit=st.integers(0, 40))
def test_text_is_cut_between_characters(text: str, limit: int):
    result = bounded(an_end(result={"stdout": text}), limit).result or {}

    assert text.encode("utf-8", "replace").decode().startswith(result["stdout"])
    assert len(result["stdout"].encode()) <= limit
    assert ("truncated" in result) == (len(text.encode("utf-8", "replace")) > limit)


def test_text_that_is_no_unicode_is_stored_all_the_same():
    end = an_end(result={"stdout": "cut \udce9", "json": {"k\udce9": [None, 1.5]}})
    machine = a_machine()
    machine.stored(new_call(machine, "0", MEMBERS, 60.0))

    machine.stored(observation(machine, "rol_1/0/init/0", end))

    call = known_call(machine, "0", MEMBERS)
    assert call is not None
    assert call.end is not None
    assert call.end.result == {"stdout": "cut ?", "json": {"k?": [None, 1.5]}}


def test_time_that_a_predecessor_used_counts_for_its_successor():
    used = {"clock": ["run", 1, 5.0, 40.0, "l1"], "key": "k", "end": None}
    machine = a_machine(Record("prepared", {"clock": ["init", 1, 0.0, 3.0]}), Record("note", used))

    assert machine.facts.active_seconds() == {Stage.INIT: 3.0, Stage.RUN: 40.0, Stage.EVAL: 0.0}


def test_a_lease_that_a_successor_adopts_was_waited_for_once():
    used = Record("note", {"clock": ["run", 1, 5.0, 40.0, "l1"]})
    machine = a_machine(Record("prepared", {}), used, attempt=2)

    machine.leased_stage(Stage.RUN, "l1", 5.0)
    assert machine.facts.times()[-1].queued_seconds == 5.0

    machine.leased_stage(Stage.RUN, "l2", 7.0)
    times = machine.facts.times()[-1]
    assert (times.queued_seconds, times.attempts) == (12.0, 2)


def test_retries_are_further_apart_and_end():
    delays = [delay_of(failures, "rol_1") for failures in range(1, 12)]

    assert delays[:7] == sorted(delays[:7])
    assert delays[-1] <= 1.25 * MOST_SECONDS
    assert delay_of(1, "rol_1", 7.0) >= 7.0
    assert len({delay_of(3, f"rol_{number}") for number in range(100)}) > 90
    assert not is_over(PATIENCE_SECONDS - 1.0)
    assert is_over(PATIENCE_SECONDS)


def a_point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "tangram.rollouts")


def test_packages_add_handlers_and_replace_none(caplog):
    points = [a_point("chess", "b:B"), a_point("chess", "a:A"), a_point("noop", "evil:Noop")]

    with caplog.at_level(logging.ERROR):
        found = handlers(points)

    assert found["chess"] == "a:A"
    assert found["noop"] == "rollout.handlers.noop:NoopHandler"
    assert "handler noop = evil:Noop is left out" in caplog.text


def test_a_handler_is_loaded_from_its_place():
    assert isinstance(load("rollout.handlers.noop:NoopHandler"), NoopHandler)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no.such.module:X", "cannot be loaded: ModuleNotFoundError"),
        ("rollout.handlers.noop:Missing", "cannot be loaded: AttributeError"),
        ("pathlib:PurePath", "is a PurePosixPath, not an AgentHandler"),
    ],
)
def test_what_is_no_handler_says_why(place, why):
    with pytest.raises(NoHandler, match=why):
        load(place)
