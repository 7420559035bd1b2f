"""SGLang with fixed places and ServerlessLLM's loops, on cases computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.evaluation.serverless_llm import ServerlessLlm
from benchmarks.evaluation.static_services import StaticServices, place
from domain.apis import CallSpec
from domain.errors import InvalidRequest
from simulator.cluster import GIB, Cluster
from simulator.llm_trace import make_requests
from simulator.work import ActionWork
from simulator.workloads.deep_search import LIMITS
from simulator.workloads.mopd import ELASTICITY, Mopd, teachers
from simulator.workloads.mopd_search import JudgedSearch, MopdSearch, services
from simulator.workloads.program import Act, Think
from tests.builders import an_action
from tests.unit.simulator.scripts import Script, script

#: Of a teacher on four GPUs: 0.1 s + 16e9 bytes at 50e9 a second.
LOADING = 0.42


def gpus(count: int, models: int) -> Cluster:
    return Cluster(-(-count // 8), 1, GIB, gpus=count, models=teachers(models))


def call(name: str, number: int, seconds: float) -> Act:
    action = an_action(
        name, kind="call", cost={"gpu": [2, 4]}, key="gpu", trajectory=f"t-{name}",
        call=CallSpec(f"service:teacher-{number}"),
    )  # fmt: skip
    return Act(action, ActionWork(seconds, None, key="gpu"))


def ends(workload: Script) -> dict[str, Any]:
    return {
        name: (finish.outcome.value, round(finish.timing.act_seconds, 6))
        for name, finish in workload.answers.items()
    }


def static(workload: Script, count: int, models: int, size: int = 4) -> dict[str, Any]:
    StaticServices(workload, gpus(count, models), size).run()
    return ends(workload)


def serverless(workload: Script, count: int, models: int) -> dict[str, Any]:
    ServerlessLlm(workload, gpus(count, models)).run()
    return ends(workload)


@pytest.mark.parametrize(
    ("count", "models", "size", "instances"),
    [(40, 9, 4, [1] * 9), (40, 1, 8, [5]), (8, 3, 4, [1, 1, 0]), (12, 3, 8, [1, 0, 0])],
    ids=["nine on forty", "one on forty", "too few GPUs", "half a node is no place for eight"],
)
def test_models_have_as_many_places_as_all_can_have_alike(count, models, size, instances):
    assert [len(some) for some in place(gpus(count, models), size).values()] == instances


def test_a_static_model_answers_in_order_while_others_idle():
    found = static(script([call("a", 0, 3.0)], [call("b", 0, 2.0)], [call("c", 1, 1.0)]), 8, 2)

    assert found == {"a": ("completed", 3.0), "b": ("completed", 5.0), "c": ("completed", 1.0)}


def test_a_model_without_a_place_refuses():
    assert static(script([call("c", 2, 1.0)]), 8, 3)["c"] == ("infra_failed", 0.2)


def test_the_line_of_a_place_that_is_shorter_is_chosen():
    found = static(script([call("a", 0, 3.0)], [call("b", 0, 2.0)]), 8, 1)

    assert found["b"] == ("completed", 2.0)


def test_more_gpus_of_an_instance_make_calls_shorter():
    act = call("a", 0, 8.0)
    workload = script([Act(act.action, ActionWork(8.0, ELASTICITY, key="gpu"))])

    found = static(workload, 8, 1, size=8)

    assert found["a"] == ("completed", pytest.approx(8.0 / (8 * 0.72), abs=1e-6))


@pytest.mark.parametrize("seconds", [(700.0, 1.0), (595.0, 10.0)], ids=["the one before", "itself"])
def test_a_caller_gives_up_after_ten_minutes(seconds):
    first, second = seconds
    found = static(script([call("a", 0, first)], [call("b", 0, second)]), 4, 1)

    assert found["b"] == ("infra_failed", 600.0)


def test_serverless_loads_then_sleeps_before_it_dispatches():
    """Loaded at 0.42; the loop looks at 1, so the call of 3 s ends at 4."""
    assert serverless(script([call("a", 0, 3.0)]), 8, 1)["a"] == ("completed", 4.0)


def test_serverless_dispatches_one_call_a_second():
    found = serverless(script(*([call(name, 0, 0.1)] for name in "abc")), 8, 1)

    assert found == {
        "a": ("completed", 1.1), "b": ("completed", 2.1), "c": ("completed", 3.1),
    }  # fmt: skip


def test_a_serverless_model_without_room_waits_until_another_is_idle():
    """a ends at 6; the scaler of its model stops it in the next second; then b is loaded."""
    found = serverless(script([call("a", 0, 5.0)], [call("b", 1, 1.0)]), 4, 2)

    assert found["a"] == ("completed", 6.0)
    assert found["b"][0] == "completed"
    assert 6.0 + LOADING + 1.0 <= found["b"][1] <= 7.0 + LOADING + 1.0 + 1.0


def test_serverless_adds_an_instance_each_second_while_calls_are_open():
    """Five calls wish for three instances: at 0, 1 and 2 s. On one alone, c would end at 32."""
    found = serverless(script(*([call(name, 0, 10.0)] for name in "abcde")), 16, 1)

    assert found["b"] == ("completed", 12.0)
    assert found["c"] == ("completed", 13.0)


def test_serverless_ends_although_trajectories_return_later():
    found = serverless(script([call("a", 0, 1.0), Think(100.0), call("b", 0, 1.0)]), 4, 1)

    assert found["b"] == ("completed", pytest.approx(2.0, abs=1.0))


@pytest.mark.parametrize(
    "make", [ServerlessLlm, lambda workload, cluster: StaticServices(workload, cluster, 4)]
)
def test_both_tasks_at_once_are_served(make):
    requests = make_requests(40, 0)
    workload = MopdSearch(
        Mopd(requests, batch=8, domains=2, rollout_seconds=30.0),
        JudgedSearch(requests, batch=8, median_turns=2.0),
    )
    limits = {name: limit for name, limit in LIMITS.items() if name != "api:judge"}
    cluster = Cluster(2, 1, GIB, limits, gpus=12, models=services(2))

    tally = make(workload, cluster).run()

    assert tally.outcomes == {"completed": workload.actions}


def test_an_unknown_model_is_bad_input():
    with pytest.raises(InvalidRequest, match="no model that the cluster knows"):
        static(script([call("a", 7, 1.0)]), 8, 2)
