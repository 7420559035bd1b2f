"""An accepted action is written back as the request that a trainer would send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.requests import ActionRequest
from domain.action import Action, ExecSpec, Kind
from domain.allocation import Allocation
from domain.bodies import STORED
from domain.elasticity import Elasticity, parse_elasticity
from domain.errors import InvalidRequest
from domain.ids import ActionId, ResourceId
from domain.resources import parse_units
from tangram_web.backup import bodies_part
from tangram_web.records.action_rows import (
    bounded_result,
    cost_of,
    placement_of,
    request_of,
    units_of,
)


def an_action(**given_values) -> Action:
    return Action(id=ActionId("act_1"), project="p", task="t", kind=Kind.EXEC, **given_values)


def test_request_reads_back_as_what_the_edge_accepts():
    action = an_action(
        cost={"cpu": (100, 1000, 4000)},
        exec=ExecSpec(("pytest", "-n", "{units}")),
        elasticity=Elasticity(table=((1000, 1.0), (4000, 0.9))),
        metadata={"a": [1, None]},
        timeout_seconds=5.0,
    )

    text = msgspec.json.encode(request_of(action))
    payload = msgspec.json.decode(text, type=ActionRequest)

    assert payload.cost == {"cpu": [0.1, 1, 4]}
    assert payload.elasticity is not None
    assert parse_elasticity(payload.elasticity) == action.elasticity
    assert (payload.exec, payload.metadata) == (action.exec, action.metadata)


def test_amdahls_share_is_kept():
    payload = request_of(an_action(elasticity=Elasticity(amdahl=0.95)))

    assert payload.elasticity == {"amdahl": 0.95}


@given(st.sets(st.integers(1, 999) | st.integers(1, 1000).map(lambda n: 1000 * n), min_size=1))
def test_cost_reads_back_exactly(counts):
    units = tuple(sorted(counts))

    assert parse_units(cost_of({"cpu": units})["cpu"], "/cost/cpu") == units


@pytest.mark.parametrize(
    ("node", "allocations", "expected"),
    [
        ("n1", (Allocation(ResourceId("cpu:n1"), 2000, (0, 1)),), {"cpu": 2}),
        ("n1", (Allocation(ResourceId("cpu:n1"), 100, (0,), shared=True),), {"cpu": 0.1}),
        (None, (Allocation(ResourceId("api:search"), 3000),), {"api:search": 3}),
        ("search", (Allocation(ResourceId("cpu:search"), 1000, (4,)),), {"cpu": 1}),
    ],
    ids=["cores of a node", "a light action", "an API", "a node with the name of an API"],
)
def test_granted_units_are_named_as_in_costs(node, allocations, expected):
    assert units_of(allocations, node) == expected


def test_placement_says_which_cores_and_whether_they_are_shared():
    light = (Allocation(ResourceId("cpu:n1"), 100, (3,), shared=True),)

    assert placement_of(light, "n1") == {
        "node": "n1",
        "cpus": (3,),
        "shared": True,
        "gpus": (),
    }
    nowhere = {"node": "n1", "cpus": (), "shared": False, "gpus": ()}
    assert placement_of((), "n1") == nowhere
    chunk = (Allocation(ResourceId("gpu:n1"), 2000, (2, 3)),)
    assert placement_of(chunk, "n1") == {**nowhere, "gpus": (2, 3)}


def test_a_row_keeps_the_end_of_a_long_output() -> None:
    text = "a" * 50_000 + "b" * 50_000
    raw = msgspec.Raw(msgspec.msgpack.encode({"exit_code": 0, "stdout": text, "stderr": ""}))
    stored = msgspec.json.decode(bounded_result(raw)[0])
    assert stored["truncated"] is True
    assert stored["stdout"].startswith("a" * 16384 + "\n[tangram: 34464 of 100000 characters")
    assert stored["stdout"].endswith("b" * 49152)


def test_a_row_has_the_stored_result_and_refers_to_it_when_it_is_cut() -> None:
    preview = {"stdout": "a", "truncated": True, STORED: {"sha256": "0" * 64, "bytes": 9}}
    raw = msgspec.Raw(msgspec.msgpack.encode(preview))

    def stored(text: str) -> dict[str, Any]:
        whole = {"exit_code": 0, "stdout": text, "stderr": "", "truncated": False}
        found: dict[str, Any] = msgspec.json.decode(bounded_result(raw, lambda _: whole)[0])
        return found

    fits = stored("b" * 65_536)
    assert (fits["stdout"], fits["truncated"], STORED in fits) == ("b" * 65_536, False, False)
    cut = stored("b" * 100_000)
    assert (cut["truncated"], cut[STORED]) == (True, preview[STORED])


def test_stored_bodies_are_in_a_backup(tmp_path: Path) -> None:
    source, copy, archive = tmp_path / "source", tmp_path / "copy", tmp_path / "bodies.tar"
    (source / "ab").mkdir(parents=True)
    (source / "ab" / "abcd").write_bytes(b"body")
    (source / "ab" / "draft.new").write_bytes(b"half")
    (source / "identity").write_text("one")
    assert bodies_part.save(str(source), archive) == 1
    assert bodies_part.load(str(copy), archive) == 1
    assert (copy / "ab" / "abcd").read_bytes() == b"body"
    assert not (copy / "identity").exists()
    assert bodies_part.save("", tmp_path / "none") == 0
    with pytest.raises(InvalidRequest, match="TANGRAM_BODIES_DIRECTORY"):
        bodies_part.load("", archive)


def test_a_backup_has_the_logs_of_rollouts(tmp_path: Path) -> None:
    """A restored rollout continues from its log, or not at all."""
    source, copy, archive = tmp_path / "source", tmp_path / "copy", tmp_path / "bodies.tar"
    log = source / "rollouts" / f"rol_{1:028x}" / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"records")
    assert bodies_part.save(str(source), archive) == 1
    bodies_part.load(str(copy), archive)
    assert (copy / log.relative_to(source)).read_bytes() == b"records"


def test_a_backup_finds_the_bodies_that_up_stores(settings: Any, tmp_path: Path) -> None:
    settings.TANGRAM_HOME, settings.TANGRAM_BODIES_DIRECTORY = tmp_path, ""
    assert bodies_part.directory() == str(tmp_path / "bodies")
    settings.TANGRAM_BODIES_DIRECTORY = "/shared"
    assert bodies_part.directory() == "/shared"
