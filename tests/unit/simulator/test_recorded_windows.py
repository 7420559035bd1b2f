"""A journal can be played again: as it was, or under other conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.action import Outcome
from domain.errors import InvalidRequest
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.overheads import NONE, Overheads
from simulator.traces import make_recordings
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.program import Think, Workload
from simulator.workloads.recorded import JournalWriter, Recorded, read_journal, recorded
from tangram_client.traces.recording import TraceError
from tests.unit.simulator.scripts import Script, act, keep, script


def journalled(
    folder: Path, workload: Workload, cluster: Cluster, overheads: Overheads = NONE
) -> tuple[Path, Scene]:
    """Simulate, and return the journal and the scene that was simulated."""
    path, scene = folder / "journal.jsonl", Scene(workload, cluster, overheads)
    with path.open("wb") as file:
        run(scene, "minimum", watch=JournalWriter(file))
    return path, scene


def of(folder: Path, workload: Script, cores: int = 8) -> Recorded:
    path, _ = journalled(folder, workload, Cluster(1, cores, GIB))
    return recorded(read_journal(path), NONE)


def test_a_window_played_again_takes_the_same_time(tmp_path: Path):
    coding = AiCoding(make_recordings(4, 0), batch=6)
    path, scene = journalled(tmp_path, coding, Cluster(1, 3, 64 * GIB), Overheads())

    again = Scene(recorded(read_journal(path)), scene.cluster)

    before, after = run(scene, "minimum").result.whole, run(again, "minimum").result.whole
    assert after.actions == before.actions
    assert after.act.mean == pytest.approx(before.act.mean, rel=1e-6)
    assert after.queue.most == pytest.approx(before.queue.most, rel=1e-6)


def test_more_cores_would_have_ended_the_wait(tmp_path: Path):
    window = of(tmp_path, script([act("a", 3.0)], [act("b", 3.0)]), cores=1)

    result = run(Scene(window, Cluster(1, 2, GIB), NONE), "minimum").result

    assert result.whole.queue.most == 0.0
    assert result.whole.execution.mean == 3.0


def test_work_is_what_explains_the_measured_time(tmp_path: Path):
    elastic = act("a", 12.0, amdahl=0.5, cost={"cpu": 4}, key="cpu", duration_seconds=1.0)
    played = script([elastic])
    elasticity = elastic.work.elasticity
    elastic.action.elasticity = elasticity

    (moves,) = of(tmp_path, played).rollouts.values()

    assert moves[0].act.work.base_seconds == pytest.approx(12.0)


def test_think_times_are_kept(tmp_path: Path):
    first, second = (act(name, 2.0, trajectory="s0-t0") for name in "ab")

    window = of(tmp_path, script([Think(3.0), first, Think(4.0), second]))

    (moves,) = window.rollouts.values()
    assert [move.think_seconds for move in moves] == pytest.approx([0.0, 4.0])


def test_leases_are_kept_as_long_as_they_were(tmp_path: Path):
    window = of(tmp_path, script([keep("a", 25.0, ttl_seconds=10.0)]))

    result = run(Scene(window, Cluster(1, 1, GIB), NONE), "minimum").result

    assert result.whole.execution.most == 25.0


def test_unfinished_actions_are_left_out_and_counted(tmp_path: Path):
    waits = act("b", 1.0, queue_timeout_seconds=2.0)

    window = of(tmp_path, script([act("a", 9.0)], [waits]), cores=1)

    assert (window.actions, window.left_out) == (1, 1)


def test_a_window_in_which_nothing_ended_is_refused():
    with pytest.raises(InvalidRequest, match="no action ran to its end"):
        recorded([])


def test_a_timed_out_action_takes_as_long_as_it_may_again(tmp_path: Path):
    window = of(tmp_path, script([act("a", 9.0, timeout_seconds=4.0)]))

    result = run(Scene(window, Cluster(1, 1, GIB), NONE), "minimum").result

    assert result.whole.execution.most == 4.0
    assert sum(result.outcomes.values()) == 1
    assert Outcome.EXPIRED not in result.outcomes


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", ":1: holds no journal entry"),
        ("{}", ":1: not a journal entry"),
        ('{"seq": 1', ":1: not a journal entry"),
    ],
)
def test_a_bad_journal_is_named(tmp_path: Path, lines: str, said: str):
    path = tmp_path / "journal.jsonl"
    path.write_text(lines)

    with pytest.raises(TraceError) as caught:
        read_journal(path)

    assert str(caught.value).startswith(f"{path}{said}")


def test_a_journal_whose_time_runs_backward_is_refused(tmp_path: Path):
    path, _ = journalled(tmp_path, script([act("a", 1.0)]), Cluster(1, 1, GIB))
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))

    with pytest.raises(TraceError, match="before the line above it"):
        read_journal(path)
