"""What the launcher of Ray asks for, without a Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import LaunchError
from managers.launch.ray_cluster import make, reservation
from managers.launch.ray_helper import gpu_variables


def spec(**fields: object) -> NodeGroupSpec:
    return NodeGroupSpec("ray", count=1, **fields)  # type: ignore[arg-type]


def test_what_a_group_offers_is_reserved_with_the_resource_of_one_machine() -> None:
    wanted = spec(cpus=8, gpus=2, memory_bytes=1000)
    assert reservation(wanted, "tangram") == (
        {"CPU": 8, "GPU": 2, "memory": 1000, "tangram": 1},
        {},
    )
    assert reservation(spec(cpus=1), "other")[0] == {"CPU": 1, "other": 1}


def test_labels_are_amounts_of_resources_or_labels_of_machines() -> None:
    bundle, labels = reservation(spec(labels={"zone": "east", "big": "0.5"}), "tangram")
    assert bundle["big"] == 0.5
    assert labels == {"zone": "east"}


@pytest.mark.parametrize(
    ("labels", "why"),
    [({"big": "0"}, "above 0"), ({"big": "nan"}, "above 0"), ({"CPU": "4"}, "reserved already")],
    ids=str,
)
def test_a_label_that_cannot_be_meant_is_named(labels: dict[str, str], why: str) -> None:
    with pytest.raises(LaunchError, match=why):
        reservation(spec(labels=labels), "tangram")


def test_gpus_are_those_that_ray_granted() -> None:
    assert gpu_variables([2, "GPU-7"], is_real=True) == {"TANGRAM_NODE_GPUS": "nvml:2,GPU-7"}
    assert gpu_variables([0, 1], is_real=False) == {"TANGRAM_NODE_GPUS": "2"}
    assert gpu_variables([], is_real=True) == {"TANGRAM_NODE_GPUS": "0"}


def test_options_that_are_not_known_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no option 'adress'"):
        make({"adress": "auto"})


@pytest.mark.parametrize("text", ["", "[]", '{"url": "http://tangram"}'], ids=str)
def test_a_file_without_url_and_token_is_a_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "client.json"
    path.write_text(text)
    launcher = make({"client": str(path)})
    (problem,) = launcher.problems()
    assert problem.startswith("option client: ")
    assert str(path) in problem


def test_an_interpreter_that_is_missing_is_named() -> None:
    launcher = make({"python": "/nowhere/python"})
    with pytest.raises(LaunchError, match="option python: /nowhere/python cannot be started"):
        launcher.instances("i", "g")
