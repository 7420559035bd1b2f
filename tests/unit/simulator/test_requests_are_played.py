"""A request of a page is checked without the simulator, and played by it in another process."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.cases import PODS, PODS_WITH_TIMEOUTS, SERVING
from domain.errors import InvalidRequest
from simulator import job
from simulator.compare import BASELINES
from simulator.request import MOST_ACTIONS, RIVALS, compared_policies, read_request
from simulator.workloads.rewards import PRESETS
from tangram_web.simulations import forms

SMALL = {"policies": ["minimum", "kubernetes"], "batch": 2, "nodes": 1, "cores": 4}


def silent(*_: object) -> None:
    pass


def test_the_light_lists_are_those_of_the_simulator():
    of_benchmarks = SERVING.keys() | PODS.keys() | PODS_WITH_TIMEOUTS.keys()
    assert {*RIVALS} | of_benchmarks == BASELINES.keys()
    shown = [name for name, _ in forms._policy_choices()]
    assert shown == [*compared_policies(), *RIVALS]
    assert sorted(PRESETS) == ["heavy", "light", "medium"]


def test_every_policy_is_played_with_every_seed():
    reported: list[tuple[str, int, int, int]] = []
    request = read_request({**SMALL, "seeds": [0, 3]})

    outcome = job.play(request, None, lambda *said: reported.append(said))

    played = [(run.policy, run.seed) for run in outcome.runs]
    assert played == [("minimum", 0), ("kubernetes", 0), ("minimum", 3), ("kubernetes", 3)]
    assert outcome.simulated
    last = {(policy, seed): (done, total) for policy, seed, done, total in reported}
    assert list(last) == played
    assert all(done == total for done, total in last.values())
    assert len(outcome.plots) == 3
    assert all(plot.svg.startswith("<svg") for plot in outcome.plots)


def test_equal_requests_have_equal_results():
    request = read_request(SMALL)

    first, second = (job.play(request, None, silent) for _ in range(2))

    assert [run.result for run in first.runs] == [run.result for run in second.runs]


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"policies": []}, "/policies"),
        ({"policies": ["best"]}, "/policies"),
        ({"policies": ["minimum", "minimum"]}, "/policies"),
        ({"seeds": [1, 1]}, "/seeds"),
        ({"batch": 0}, "/batch"),
        ({"batch": 10**9}, "/batch"),
        ({"nodes": "many"}, "/nodes"),
        ({"colour": "red"}, ""),
    ],
)
def test_a_wrong_request_names_its_member(wrong, pointer):
    with pytest.raises(InvalidRequest) as refused:
        read_request({**SMALL, **wrong})

    assert (refused.value.pointer or "").startswith(pointer)


def test_a_request_of_too_many_actions_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr(job, "MOST_ACTIONS", 10)

    with pytest.raises(InvalidRequest, match="at most 10"):
        job.play(read_request(SMALL), None, silent)

    assert MOST_ACTIONS > 10


def test_bad_input_is_one_line_and_an_exit_code(tmp_path, capsys):
    (tmp_path / "request.json").write_text('{"policies": ["minimum"]}')
    (tmp_path / "trace").write_text('{"steps": []\n')

    assert job.main([str(tmp_path)]) == job.BAD_INPUT

    said = capsys.readouterr().err
    assert said.startswith("trace:1: not JSON")
    assert said.count("\n") == 1
    assert not (tmp_path / "result.json").exists()
