"""Groups that a dead node worker or an ended action has left: which end, which stay, and which are used again."""

from __future__ import annotations

from pathlib import Path

from managers.cpu.process.process_groups import EnvironmentGroup, ProcessGroups


def made(parent: Path, *names: str) -> None:
    for name in names:
        (parent / name).mkdir(parents=True)


def test_groups_of_actions_and_of_ended_environments_are_removed(tmp_path: Path) -> None:
    made(
        tmp_path, "action-1", "environment-old/background", "environment-old/action-2",
        "environment-kept/background", "environment-kept/action-3",
    )  # fmt: skip

    assert ProcessGroups(tmp_path, 10, one_tree=False).clear({"kept"}) == 0

    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")}
    assert left == {"environment-kept", "environment-kept/background"}


def test_in_one_tree_groups_are_found_below_those_of_memory(tmp_path: Path) -> None:
    made(tmp_path, "one/environment-one/action-2", "two/environment-two/background")

    ProcessGroups(tmp_path, 10, one_tree=True).clear({"one"})

    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")}
    assert left == {"one", "one/environment-one", "two"}


def test_the_group_of_an_ended_action_is_used_again_once_it_is_empty(tmp_path: Path) -> None:
    environment = EnvironmentGroup(tmp_path / "environment-one", 10)
    environment.make()
    first = environment.action(1)
    limit = first.entrance.with_name("pids.max")
    limit.touch()
    assert not environment.keep(first)  # it may hold processes
    first.kill()
    assert limit.read_text() == "0"
    assert environment.retire(first) == []
    assert environment.keep(first)

    assert environment.action(2) is first
    assert limit.read_text() == "10"
    assert environment.action(3) is not first
    assert not environment.keep(first)
