"""What a job of ProRL's clients becomes as a rollout."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from domain.backends import owner_of
from domain.errors import InvalidRequest
from facades.prorl.messages import (
    JobCancelRequest,
    JobRequest,
    handler_of,
    instance_name,
    pool_of,
    read,
    request_digest,
    source_of,
    submission,
    trajectory_of,
)
from rollout.handlers.code import CodeMembers
from rollout.handlers.code_cases import cases_of
from rollout.handlers.math import MathMembers
from rollout.handlers.swe_instances import SweMembers


def members(instance: dict[str, Any], environment: Any = None, **sampling: Any) -> dict[str, Any]:
    return submission(
        JobRequest(instance, sampling),
        session="s",
        task="T",
        pool="p",
        environment=environment or {},
        seconds=None,
    )


@pytest.mark.parametrize(
    ("source", "handler"),
    [
        ("swebench", "swe"), ("deepscaler", "math"), ("deepcoder", "code"),
        ("deepcoder_primeintellect", "code"), ("taco", "code"), ("stem", "stem"), ("mine", "mine"),
    ],
)  # fmt: skip
def test_a_data_source_names_a_handler(source: str, handler: str):
    assert handler_of(source_of({"data_source": source})) == handler


def test_the_default_data_source_is_swebench_and_another_type_is_refused():
    assert source_of({}) == "swebench"
    with pytest.raises(InvalidRequest, match="data_source is a text"):
        source_of({"data_source": 3})


def test_an_instance_without_an_id_is_named_as_prorl_names_it():
    extra = {"split": "train", "index": 7, "name": "aime"}
    assert (
        instance_name({"data_source": "deepscaler", "extra_info": extra})
        == "deepscaler_aime_train_7"
    )
    assert instance_name({}) == "unknown_unknown_unknown_unknown"
    assert instance_name({"instance_id": 12}) == "12"
    first, second = (instance_name({"instance_id": "x" * 300 + end}) for end in "ab")
    assert len(first) == 256
    assert first != second


@pytest.mark.parametrize(("stated", "found"), [(3, 3), ("3", "3"), (3.0, 3), (None, None)])
def test_a_trajectory_is_an_integer_or_a_text(stated: Any, found: Any):
    assert trajectory_of({"trajectory_id": stated}) == found


@pytest.mark.parametrize("stated", [True, 1.5, [1]])
def test_another_trajectory_is_refused(stated: Any):
    with pytest.raises(InvalidRequest, match="trajectory_id"):
        trajectory_of({"trajectory_id": stated})


def test_options_of_the_agent_are_options_of_the_handler_and_the_rest_is_sampling():
    found = members(
        {"instance_id": "i"}, max_iterations=5, strict_loop_detector=True, top_p=0.9, own=1
    )
    assert found["options"] == {"max_iterations": 5, "strict_loop_detector": True}
    assert found["sampling"] == {"top_p": 0.9, "own": 1}


def test_handlers_that_run_commands_get_an_environment_and_the_image_may_name_the_instance():
    assert members({"instance_id": "i"})["environment"] == {}
    assert "environment" not in members({"data_source": "noop"})
    stated = {"image": "xingyaoww/sweb.eval.x86_64.{instance_id}"}
    assert members({"instance_id": "Django__django-1"}, stated)["environment"] == {
        "image": "xingyaoww/sweb.eval.x86_64.django_s_django-1"
    }


def test_trajectories_of_an_instance_are_a_group_of_their_session():
    groups = [members({"instance_id": "i", "trajectory_id": n})["group"] for n in range(2)]
    assert groups[0] == groups[1] != members({"instance_id": "j"})["group"]


def test_equal_jobs_of_a_session_have_equal_digests():
    one = JobRequest({"instance_id": "i", "a": 1}, {"b": 2})
    assert request_digest("s", one) == request_digest(
        "s", JobRequest({"instance_id": "i", "a": 1}, {"b": 2})
    )
    assert request_digest("s", one) != request_digest("t", one)
    assert request_digest("s", one) != request_digest(
        "s", JobRequest({"instance_id": "i"}, {"b": 2})
    )


def test_a_pool_belongs_to_its_project_whatever_the_task_is_named():
    for task in ("T", "a@b", "x" * 100, "with/slash"):
        pool = pool_of("p@q", task)
        assert owner_of(pool) == "p@q"
        assert len(pool) < 70
    assert pool_of("p", "T") == "prorl.T@p"
    assert pool_of("p", "a@b") != pool_of("p", "a@c")


def test_nan_is_null_and_what_is_no_body_is_refused():
    found = read(
        JobRequest,
        b'{"instance": {"a": NaN, "b": [Infinity]}, "sampling_params": {}, "more": 1}',
    )
    assert found.instance == {"a": None, "b": [None]}
    for body in (
        b"",
        b"{",
        b"null",
        b'{"instance": {}}',
        b'{"job_id": NaN}',
        b"\xff",
        b"[" * 100_000,
    ):
        with pytest.raises(InvalidRequest):
            read(JobCancelRequest if b"NaN" in body else JobRequest, body)


@pytest.mark.parametrize("as_text", [False, True])
def test_rows_of_verl_are_instances_that_our_handlers_read(as_text: bool):
    prompt: Any = [{"role": "user", "content": "What is 1 + 1?"}]
    rule: Any = {"ground_truth": "2", "style": "rule"}
    if as_text:
        prompt, rule = json.dumps(prompt), json.dumps(rule)
    row = {
        "data_source": "deepscaler",
        "prompt": prompt,
        "reward_model": rule,
        "extra_info": {"index": 1},
    }
    found = members(row)
    read_as = msgspec.convert(found["instances"][0]["data"], MathMembers)
    assert (read_as.prompt, read_as.ground_truth) == ("What is 1 + 1?", "2")
    assert found["options"]["tools"] == ["python", "think"]
    assert found["environment"] == {}


def test_cases_of_a_row_of_code_are_found():
    cases = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    row = {
        "data_source": "codecontests", "prompt": [{"content": "Add one.", "role": "user"}],
        "reward_model": {"ground_truth": cases, "style": "rule"},
    }  # fmt: skip
    data = members(row)["instances"][0]["data"]
    assert msgspec.convert(data, CodeMembers).prompt == "Add one."
    assert [case.expected for case in cases_of(data).cases] == ["2\n"]


def test_an_instance_of_swe_gym_is_one_that_our_handler_reads():
    row = {
        "instance_id": "i", "problem_statement": "It fails.", "base_commit": "abc", "FAIL_TO_PASS": ["tests/a.py::t"],
        "PASS_TO_PASS": '["tests/a.py::u"]', "test_patch": "", "version": "1.0", "hints_text": None,
    }  # fmt: skip
    data = members(row)["instances"][0]["data"]
    assert msgspec.convert(data, SweMembers).fail_to_pass == ["tests/a.py::t"]
    assert "tools" not in members(row)["options"]
