"""Declarations of fleets name the member that is wrong, and its cure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.apis import CallSpec
from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from domain.fleets import (
    FleetEngine,
    FleetSpec,
    WorkerSpec,
    check_fleet,
    check_generation,
    fleet_name,
    fleet_of,
    reachable,
    worker_resource,
)

W1 = WorkerSpec("w1", "http://10.0.0.7:8000")
W2 = WorkerSpec("w2", "http://10.0.0.8:8000", degree=4)


MEASURED = DegreeProfile(1, (1,), (0,), ((0.01,),), ((1000, 0.1),), kv_tokens=50_000)


def a_spec(*workers: WorkerSpec, engine: FleetEngine = FleetEngine.VLLM, **fields: object):
    return FleetSpec(engine, workers=workers, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spec",
    [
        a_spec(),
        a_spec(W1, W2),
        a_spec(W1, gpus=6, degrees=(2, 4)),
        a_spec(engine=FleetEngine.OPENAI),
        a_spec(profile=EngineProfile((MEASURED,))),
        a_spec(modelled="14b"),
    ],
)
def test_a_fleet_of_workers_elsewhere_of_our_own_or_of_none_yet_is_accepted(spec: FleetSpec):
    check_fleet("Qwen3-8B", spec)


WRONG = [
    (a_spec(W1, WorkerSpec("w1", "http://b:1")), "/workers/1/name", "its own"),
    (a_spec(W1, WorkerSpec("w2", "http://10.0.0.7:8000/")), "/workers/1/url", "count twice"),
    (a_spec(WorkerSpec("w1", "http://a:1/v1")), "/workers/0/url", "leave out /v1"),
    (a_spec(WorkerSpec("w1", "http://key:x@a:1")), "/workers/0/url", "user"),
    (a_spec(WorkerSpec("w1", "a:1")), "/workers/0/url", "http://10.0.0.7:8000"),
    (a_spec(WorkerSpec("w/1", "http://a:1")), "/workers/0/name", "letters"),
    (a_spec(WorkerSpec("w1", "http://a:1", slots=0)), "/workers/0/slots", "1 to"),
    (a_spec(WorkerSpec("w1", "http://a:1", degree=3)), "/workers/0/degree", "1, 2, 4, 8"),
    (a_spec(gpus=8, degrees=(3,)), "/degrees/0", "1, 2, 4, 8"),
    (a_spec(gpus=8, degrees=(2, 2)), "/degrees", "once"),
    (a_spec(gpus=8), "/degrees", "both"),
    (a_spec(degrees=(1,)), "/gpus", "both"),
    (a_spec(gpus=7, degrees=(2, 4)), "/gpus", "give 6 or 8"),
    (a_spec(gpus=2, degrees=(4, 8)), "/gpus", "give 4"),
    (a_spec(gpus=2, degrees=(1,), engine=FleetEngine.OPENAI), "/engine", "that we start"),
    (a_spec(slots=0), "/slots", "1 to"),
    (a_spec(command=("serve", "{port}")), "/command", "give gpus"),
    (a_spec(gpus=1, degrees=(1,), command=("serve",)), "/command", "needs {port}"),
    (a_spec(gpus=1, degrees=(1,), env={"A=B": "1"}), "/env", "variable name"),
    (a_spec(gpus=1, degrees=(1,), start_seconds=0.0), "/start_seconds", "1 to"),
    (a_spec(modelled="9b"), "/modelled", "8b, 14b, 32b"),
    (a_spec(profile=EngineProfile(())), "/profile/degrees", "at least one"),
    (a_spec(W1, W2, profile=EngineProfile((MEASURED,))), "/workers/1/degree", "measure it"),
    (a_spec(gpus=4, degrees=(1, 2), profile=EngineProfile((MEASURED,))), "/degrees/1", "only 1"),
    (a_spec(profile=EngineProfile((replace(MEASURED, kv_tokens=float("nan")),))), "/profile/degrees/0/kv_tokens", "at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "pointer", "words"), WRONG)
def test_a_fleet_that_cannot_be_served_is_refused_with_member_and_cure(
    spec: FleetSpec, pointer: str, words: str
):
    with pytest.raises(InvalidRequest, match=words) as refused:
        check_fleet("m", spec)

    assert refused.value.pointer == pointer


@pytest.mark.parametrize("name", ["", "Qwen/Qwen3-8B", "a" * 64, "a#1", "-a"])
def test_a_name_is_one_that_requests_and_addresses_can_have(name: str):
    with pytest.raises(InvalidRequest, match="served-model-name") as refused:
        check_fleet(name, a_spec())

    assert refused.value.pointer == "/name"


def test_sums_of_degrees_are_found_as_by_trying_them():
    for degrees in ((1,), (2,), (4, 8), (2, 8), (1, 2, 4, 8), (8,)):
        sums = {0}
        for _ in range(40):
            sums |= {total + degree for total in sums for degree in degrees}
        for gpus in range(1, 33):
            assert reachable(gpus, degrees) == (gpus in sums)
    assert not reachable(1, ())


def test_resources_of_workers_name_fleet_and_worker():
    assert fleet_of(worker_resource("Qwen3-8B", 12)) == ("Qwen3-8B", 12)
    assert [fleet_of(each) for each in ("fleet:a", "cpu:n1", "api:x")] == [None] * 3
    assert [fleet_name(each) for each in ("fleet:a", "service:a")] == ["a", None]


@pytest.mark.parametrize(
    ("call", "pointer"),
    [
        (CallSpec("fleet:m", "GET", "/v1/completions"), "/call/method"),
        (CallSpec("fleet:m", "POST", "/sleep"), "/call/path"),
        (CallSpec("fleet:m", "POST", "/v1/../sleep"), "/call/path"),
        (CallSpec("fleet:m", "POST", "/v1/completions", {"Host": "x"}), "/call/headers"),
    ],
)
def test_a_worker_gets_generations_and_no_controls(call: CallSpec, pointer: str):
    with pytest.raises(InvalidRequest) as refused:
        check_generation(call)

    assert refused.value.pointer == pointer
