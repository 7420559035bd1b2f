"""A report that was interrupted goes on where it was, and never with what no longer holds."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.evaluation.cases import Case, Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.runs import Done, Results, simulate
from simulator.compare import Timed
from simulator.llm_trace import make_requests
from simulator.traces import make_recordings

SCALE = Scale("tiny", seeds=1, interactions=2)
INPUTS = Inputs(make_recordings(2, 0), make_requests(5, 0), "made up")
CASES = [Case(policy, 2, nodes=1, cores=2) for policy in ("minimum", "paper", "kubernetes")]


class Interrupted(Exception):
    """The report was interrupted."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "simulated.jsonl"


def all_of_them(path: Path, inputs: Inputs = INPUTS, jobs: int = 1) -> tuple[Results, list[Done]]:
    seen: list[Done] = []
    kept = Kept(path, inputs.at(SCALE), SCALE)
    results = simulate(CASES, inputs, SCALE, jobs=jobs, progress=seen.append, kept=kept)
    return results, seen


def interrupted_after_the_first(path: Path) -> None:
    def watch(case: Case, timed: Timed) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        simulate(CASES, INPUTS, SCALE, kept=Kept(path, INPUTS.at(SCALE), SCALE), watch=watch)


def test_finished_cases_are_not_simulated_again(path: Path):
    interrupted_after_the_first(path)

    results, seen = all_of_them(path)

    assert [done.cases for done in seen] == [1, 2, 3]
    assert seen[-1] == Done(3, 3, 1.0)
    assert results == simulate(CASES, INPUTS, SCALE)


def test_a_line_that_was_cut_off_is_simulated_again(path: Path):
    interrupted_after_the_first(path)
    path.write_bytes(path.read_bytes()[:-20])

    results, seen = all_of_them(path)

    assert [done.cases for done in seen] == [0, 1, 2, 3]
    assert results == simulate(CASES, INPUTS, SCALE)


def test_another_input_is_simulated_again(path: Path):
    interrupted_after_the_first(path)

    _, seen = all_of_them(path, replace(INPUTS, recordings=make_recordings(2, 1)))

    assert [done.cases for done in seen] == [0, 1, 2, 3]


def test_a_finished_report_leaves_no_intermediate_file(path: Path):
    interrupted_after_the_first(path)

    Kept(path, INPUTS, SCALE).remove()

    assert not path.exists()


@pytest.mark.slow
def test_several_processes_give_what_one_gives(tmp_path: Path):
    one, _ = all_of_them(tmp_path / "one")
    several, seen = all_of_them(tmp_path / "several", jobs=2)

    assert several == one
    assert seen[-1] == Done(3, 3, 1.0)


@pytest.mark.slow
def test_an_interruption_waits_for_no_simulation_that_runs():
    workers = []

    def watch(case: Case, timed: Timed) -> None:
        workers.extend(multiprocessing.active_children())
        raise Interrupted

    long = Case("paper", 20_000, nodes=1, cores=2)
    with pytest.raises(Interrupted):
        simulate([long, *CASES], INPUTS, SCALE, jobs=2, watch=watch)

    assert [worker.exitcode for worker in workers] == [-signal.SIGTERM] * 2
