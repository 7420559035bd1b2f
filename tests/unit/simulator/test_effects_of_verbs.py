"""What one verb would have changed in the last minutes: both runs have the same actions. Simulated."""

from __future__ import annotations

import signal
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from domain.errors import InvalidRequest
from domain.events import TaskPaused, TaskPrioritised
from domain.inventory import Config, PoolConfig, ProjectConfig
from simulator import effect
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.effect_request import EffectAnswer, EffectRequest, EffectResult
from simulator.overheads import NONE
from simulator.request import Variant
from simulator.workloads.recorded import JournalWriter
from tests.unit.simulator.scripts import act, script

CONFIG = Config(
    projects={"default": ProjectConfig("default")}, pools={"default": PoolConfig("default")}
)
PAUSED = msgspec.structs.replace(CONFIG, pools={"default": PoolConfig("default", paused=True)})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four actions of a second on one core, two of each task, submitted at once."""
    return recorded_at(tmp_path, "x", "x", "y", "y")


def recorded_at(tmp_path: Path, *tasks: str) -> Path:
    """Record an action of a second for each of ``tasks``."""
    workload = script(*(
        [act(f"a{number}", 1.0, task=task)] for number, task in enumerate(tasks)
    ))  # fmt: skip
    path = tmp_path / "trace"
    with path.open("wb") as file:
        run(Scene(workload, Cluster(1, 1, GIB), NONE), "minimum", watch=JournalWriter(file))
    return path


def effect_of(trace: Path, then: Config = CONFIG, *, cores: int = 1, **more: Any) -> EffectResult:
    """Play the trace as the page asks for it, through JSON."""
    request = EffectRequest(
        now=Variant(config=CONFIG, nodes=1, cores=1, memory_gib=1),
        then=Variant(config=then, nodes=1, cores=cores, memory_gib=1), seconds=2.5, **more,
    )  # fmt: skip
    sent = msgspec.json.decode(msgspec.json.encode(request), type=EffectRequest)
    return effect.play(sent, trace.read_bytes())


def test_a_change_without_consequence_changes_no_number(trace: Path):
    found = effect_of(trace)

    assert (found.actions, found.compared) == (4, 4)
    assert found.now == found.then
    # They end after 1, 2, 3 and 4 s; after 2.5 s one waits for its turn.
    assert found.now.act_mean == pytest.approx(2.5, abs=0.1)
    assert found.now.waiting == 1
    assert found.measured_mean == pytest.approx(found.simulated_mean, abs=0.1)


def test_a_paused_pool_is_no_error_its_actions_never_end(trace: Path):
    found = effect_of(trace, PAUSED)

    assert (found.compared, found.now.never, found.then.never) == (0, 0, 4)
    assert (found.now.waiting, found.then.waiting) == (1, 4)


def test_a_paused_task_leaves_room_to_the_other(trace: Path):
    found = effect_of(trace, events_then=[TaskPaused(project="default", task="x", paused=True)])

    assert (found.compared, found.then.never) == (2, 2)
    assert found.now.act_mean == pytest.approx(3.5, abs=0.1)
    assert found.then.act_mean == pytest.approx(1.5, abs=0.1)


def test_a_task_of_higher_priority_is_granted_first(trace: Path):
    urgent = TaskPrioritised(project="default", task="y", priority=9)

    found = effect_of(trace, events_then=[urgent])

    assert (found.compared, found.then.never) == (4, 0)
    assert found.now.act_mean == pytest.approx(found.then.act_mean, abs=0.1)


def test_what_a_verb_ends_counts_in_neither_run(trace: Path):
    cancelled = effect_of(trace, without_task="default/x")
    one = effect_of(trace, without_actions=frozenset({"a0"}))

    assert (cancelled.actions, cancelled.then.never) == (2, 0)
    assert cancelled.now.act_mean == pytest.approx(3.5, abs=0.1)
    assert cancelled.then.act_mean == pytest.approx(1.5, abs=0.1)
    assert one.actions == 3


def test_without_its_only_task_nothing_is_left_to_compare(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="no other action"):
        effect_of(recorded_at(tmp_path, "x"), without_task="default/x")


def test_questions_are_answered_one_after_the_other(trace: Path):
    request = EffectRequest(
        now=Variant(config=CONFIG, nodes=1, cores=1, memory_gib=1),
        then=Variant(config=PAUSED, nodes=1, cores=1, memory_gib=1), seconds=2.5,
    )  # fmt: skip
    asked = BytesIO()
    for body, content in (
        (msgspec.json.encode(request), b"no journal\n"),
        (b"{}", b""),
        (msgspec.json.encode(request), trace.read_bytes()),
    ):
        asked.writelines([b"%d %d\n" % (len(body), len(content)), body, content])
    asked.seek(0)
    answers = BytesIO()

    effect.serve(asked, answers)
    signal.alarm(0)

    first, second, third = (
        msgspec.json.decode(line, type=EffectAnswer) for line in answers.getvalue().splitlines()
    )
    assert "trace:1: not a journal entry" in first.problem
    assert "missing required field" in second.problem
    assert third.result is not None
    assert third.result.then.never == 4
