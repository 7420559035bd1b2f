"""``manage.py plan``: a problem on standard input, the decision on standard output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from tests.architecture.tree import ROOT

CPU = {"type": "units", "free": 8, "running": [2.0, 5.0]}
PROBLEM: dict[str, Any] = {
    "depth": 2,
    "resources": {
        "cpu:n1": CPU,
        "gpu:g1": {"type": "chunks", "free": [0, 0, 0, 1], "running": []},
        "api:search": {"type": "concurrency", "free": 3, "running": []},
    },
    "waiting": [
        {
            "id": "a",
            "cost": {"cpu:n1": [1, 2, 4], "api:search": [1]},
            "key": "cpu:n1",
            "duration_s": 10.0,
            "elasticity": {"1": 1.0, "2": 0.95, "4": 0.8},
        }
    ],
}
ONE = PROBLEM["waiting"][0]

Plan = Callable[..., dict[str, Any]]


class _Input:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run the command on a problem; return what it wrote to standard output."""

    def run(problem: Any, **options: Any) -> dict[str, Any]:
        content = problem if isinstance(problem, bytes) else json.dumps(problem).encode()
        monkeypatch.setattr(sys, "stdin", _Input(content))
        out = io.StringIO()
        call_command("plan", stdout=out, **options)
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    return run


def test_the_decision_of_policy_paper_is_reproduced(plan):
    """Alone on eight cores: 10 s / (0.8 · 4) = 3.125 s, no other action waits."""
    answer = plan(PROBLEM)

    assert answer.pop("decision_us") >= 0
    assert answer == {
        "selected": [{"id": "a", "units": {"cpu:n1": 4, "api:search": 1}}],
        "waiting": [],
        "objective_s": {"cpu:n1": 3.125},
    }


def test_a_waiting_action_in_the_plan_has_its_reason(plan):
    answer = plan(PROBLEM | {"waiting": [ONE, {"id": "b", "cost": {"api:search": [4]}}]})

    assert answer["waiting"] == [{"id": "b", "reason": "waits for 4 of api:search, 2 free"}]


def test_the_depth_is_taken_from_the_problem(plan):
    """Two cores, two actions, perfect profiles: depth 1 does not see that the second may have both."""
    two = {"cost": {"cpu": [1, 2]}, "duration_s": 10, "elasticity": {"amdahl": 1.0}}
    problem = {
        "resources": {"cpu": {"type": "units", "free": 2}},
        "waiting": [{"id": "a", **two}, {"id": "b", **two}],
    }

    assert plan(problem | {"depth": 1})["objective_s"] == {"cpu": 20.0}
    assert plan(problem | {"depth": 2})["objective_s"] == {"cpu": 15.0}
    assert plan(problem)["objective_s"] == {"cpu": 15.0}


@pytest.mark.parametrize(
    ("policy", "cores"),
    [("minimum", 1), ("fixed(2)", 2), ("balanced", 4)],
    ids=lambda each: str(each),
)
def test_other_policies_are_asked_for_by_name(plan, policy, cores):
    (selected,) = plan(PROBLEM, policy=policy)["selected"]

    assert selected["units"]["cpu:n1"] == cores


def test_a_resource_that_shrank_below_what_runs_grants_nothing(plan):
    answer = plan(PROBLEM | {"resources": PROBLEM["resources"] | {"cpu:n1": CPU | {"free": -2}}})

    assert answer["selected"] == []
    assert answer["waiting"] == [{"id": "a", "reason": "waits for 1 of cpu:n1, -2 free"}]


def test_chunks_are_arranged_by_their_shapes(plan):
    """Free are 4 + 2 + 2: no two actions can have 4, though 8 GPUs are free."""
    wide = {"cost": {"gpu:g1": [2, 4]}, "duration_s": 8, "elasticity": {"amdahl": 1.0}}
    problem = {
        "resources": {"gpu:g1": {"type": "chunks", "free": [0, 2, 1, 0]}},
        "waiting": [{"id": name, **wide} for name in "ab"],
    }

    answer = plan(problem)

    assert [each["units"]["gpu:g1"] for each in answer["selected"]] == [4, 2]
    assert answer["objective_s"] == {"gpu:g1": 6.0}


def test_the_plan_for_a_chunk_names_the_free_ones(plan):
    problem = with_chunks([2, 1, 0, 0]) | {"waiting": [{"id": "a", "cost": {"gpu:g1": [3]}}]}

    assert plan(problem)["waiting"] == [
        {"id": "a", "reason": "waits for 3 of gpu:g1, 2 × 1, 1 × 2 free"}
    ]


def test_claims_and_other_groups_keep_their_chunks(plan):
    """`a` needs one GPU for its cores; `b` may have the largest chunk that leaves it one."""
    problem = {
        "resources": {
            "cpu": {"type": "units", "free": 1},
            "gpu": {"type": "chunks", "free": [0, 0, 0, 1]},
        },
        "waiting": [
            {"id": "a", "cost": {"cpu": [1], "gpu": [1]}, "key": "cpu"},
            {
                "id": "b",
                "cost": {"gpu": [1, 2, 4, 8]},
                "duration_s": 8,
                "elasticity": {"amdahl": 1.0},
            },
        ],
    }

    assert plan(problem)["selected"][1]["units"] == {"gpu": 4}


def with_action(**fields: Any) -> dict[str, Any]:
    return PROBLEM | {"waiting": [ONE | fields]}


def with_chunks(free: Any) -> dict[str, Any]:
    chunks = {"type": "chunks", "free": free}
    return PROBLEM | {"resources": PROBLEM["resources"] | {"gpu:g1": chunks}}


def with_cpu(**fields: Any) -> dict[str, Any]:
    return PROBLEM | {"resources": PROBLEM["resources"] | {"cpu:n1": CPU | fields}}


NAN = float("nan")


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (b"", "plan: not JSON: "),
        (b"\xff", "plan: not JSON: "),
        (b'{"waiting": [], "waiting": []}', "plan: not JSON: the member 'waiting' is repeated"),
        ([], "plan: Expected `object`"),
        ({}, "plan: Object missing required field `resources`"),
        (PROBLEM | {"depth": 0}, "plan: /depth: "),
        (PROBLEM | {"speed": 1}, "plan: Object contains unknown field `speed`"),
        (with_action(cost={"cpu:n1": []}), "plan: /waiting/0/cost/cpu:n1: give 1 to 1024"),
        (with_action(cost={"cpu:n1": [0]}), "plan: /waiting/0/cost/cpu:n1: 0 is not a unit count"),
        (with_action(cost={"cpu:n1": [NAN]}), "plan: /waiting/0/cost/cpu:n1: nan is not"),
        (with_action(cost={"cpu:n1": [10**400]}), "plan: /waiting/0/cost/cpu:n1: 1000"),
        (with_action(cost={"cpu:n9": [1]}), "plan: /waiting/0/cost/cpu:n9: there is no resource"),
        (
            with_action(cost={"cpu:n1": "1"}),
            "plan: /waiting/0/cost/cpu:n1: Expected `int | float | object | array`",
        ),
        (
            with_action(cost={"gpu:g1": [8, 9]}, key=None),
            "plan: /waiting/0/cost/gpu:g1: a chunk has 1 to 8 whole GPUs",
        ),
        (
            with_action(cost={"gpu:g1": [0.5]}, key=None),
            "plan: /waiting/0/cost/gpu:g1: a chunk has 1 to 8 whole GPUs",
        ),
        (with_chunks(8), "plan: /resources/gpu:g1/free: free chunks are four counts"),
        (with_chunks([0, 0, 1]), "plan: /resources/gpu:g1/free: free chunks are four counts"),
        (with_chunks([0, 0, 0, -1]), "plan: /resources/gpu:g1/free/3: -1 is not a count"),
        (with_action(key="memory"), "plan: /waiting/0/key: 'memory' is not in the cost"),
        (with_action(duration_s=0), "plan: /waiting/0/duration_s: 0 is not a duration"),
        (with_action(duration_s=NAN), "plan: /waiting/0/duration_s: nan is not a duration"),
        (with_action(duration_s=-1.5), "plan: /waiting/0/duration_s: -1.5 is not a duration"),
        (
            with_action(duration_s=True),
            "plan: /waiting/0/duration_s: Expected `int | float | null`",
        ),
        (with_action(elasticity={"1": 0.0}), "plan: /waiting/0/elasticity/1: 0.0 is outside"),
        (with_action(elasticity={"2": 1.01}), "plan: /waiting/0/elasticity/2: 1.01 is outside"),
        (
            with_action(elasticity={"2": 10**400}),
            "plan: /waiting/0/elasticity/2: Number out of range",
        ),
        (with_action(elasticity={"1": NAN}), "plan: /waiting/0/elasticity/1: nan is outside"),
        (with_action(elasticity={"x": 1.0}), "plan: /waiting/0/elasticity/x: 'x' is not a unit"),
        (with_action(elasticity={}), "plan: /waiting/0/elasticity: give at least one point"),
        (
            with_action(elasticity={"amdahl": 2}),
            "plan: /waiting/0/elasticity: amdahl is the only member",
        ),
        (with_action(id=""), "plan: /waiting/0/id: "),
        (PROBLEM | {"waiting": [ONE, ONE]}, "plan: /waiting/1/id: 'a' is /waiting/0 already"),
        (with_cpu(free=NAN), "plan: /resources/cpu:n1/free: nan is not a count"),
        (with_cpu(free=10**400), "plan: /resources/cpu:n1/free: 1000"),
        (with_cpu(free=[8]), "plan: /resources/cpu:n1/free: free units are one number"),
        (with_cpu(type="gold"), "plan: /resources/cpu:n1/type: Invalid enum value 'gold'"),
        (with_cpu(running=[1.0, -0.5]), "plan: /resources/cpu:n1/running/1: -0.5 is not a number"),
        (with_cpu(running=[NAN]), "plan: /resources/cpu:n1/running/0: nan is not a number"),
    ],
)
def test_bad_input_is_one_line_that_names_the_member(plan, capsys, problem, line):
    with pytest.raises(SystemExit) as ended:
        plan(problem)

    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1


def test_an_unknown_policy_is_named_with_the_known_ones(plan, capsys):
    with pytest.raises(SystemExit) as ended:
        plan(PROBLEM, policy="fastest")

    assert ended.value.code == 2
    assert "'fastest' is no policy; known are balanced, fixed(k)" in capsys.readouterr().err


@pytest.mark.slow
def test_it_needs_nothing_but_standard_input(tmp_path: Path):
    """An empty environment and home: no database, no Redis, no server."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "plan"],
        input=json.dumps(PROBLEM),
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["objective_s"] == {"cpu:n1": 3.125}
