"""Maps of nodes: held cores, the way they are held, and memory reserved by environments."""

from __future__ import annotations

from typing import Any

from domain.decisions import EndMove, ForkEnvironment, TransferFile
from domain.events import (
    EnvironmentRemoved,
    EnvironmentsForked,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import TrajectoryKey
from tangram_web.live.frames import FrameFold
from tangram_web.metrics.totals import Totals
from tests.unit.live.journal import Journal, environment

GIB = 2**30


def node(journal: Journal) -> dict[str, Any]:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    row: dict[str, Any] = fold.frames(journal.at)["nodes"].body["nodes"][0]
    return row


def test_the_core_map_distinguishes_exclusive_from_shared_cores():
    journal = Journal()
    journal.join("n1", groups=((0, 1), (4, 5)))
    for name, cores, milli in (("a1", (0,), None), ("a2", (4, 5), 100), ("a3", (4,), 200)):
        journal.submit(name)
        journal.grant(name, cores, milli=milli)

    row = node(journal)

    assert row["groups"] == ["0-1", "4-5"]
    assert row["cores"] == bytes([255, 0, 2, 1])
    assert row["cores_held"] == 1.3


def test_light_actions_on_a_shared_core_hold_nothing_of_the_capacity():
    journal = Journal()
    journal.join("n1", groups=((1, 2),), shared_units=(0,))
    for name, cores, milli in (("a1", (1,), None), ("a2", (0,), 300), ("a3", (0,), 100)):
        journal.submit(name)
        journal.grant(name, cores, milli=milli)

    row = node(journal)

    assert (row["cores_held"], row["cores_total"], row["cores_kept"]) == (1.0, 2.0, 1)
    journal.submit("a4")
    journal.grant("a4", (0, 2), milli=300)
    assert node(journal)["cores_held"] == 1.2, "what exceeds the shared core's budget counts"


def test_cores_are_free_again_after_the_action():
    journal = Journal()
    journal.join("n1")
    journal.submit("a1")
    journal.grant("a1", (1, 2))
    journal.finish("a1")

    assert node(journal)["cores"] == bytes(4)


def test_a_resized_action_holds_what_it_has_now():
    journal = Journal()
    journal.join("n1")
    journal.submit("a1")
    journal.grant("a1", (0, 1))
    journal.resize("a1", (1, 2, 3))
    journal.resize("a1", (0,), attempt=2)
    assert node(journal)["cores"] == bytes([0, 255, 255, 255])

    journal.finish("a1")

    assert node(journal)["cores"] == bytes(4)


def test_cores_of_a_node_that_joins_after_the_grant_are_held():
    journal = Journal()
    journal.grant("a1", (2,))
    journal.join("n1")

    assert node(journal)["cores"] == bytes([0, 0, 255, 0])


def test_environment_reserves_memory_from_its_first_grant_to_its_removal():
    journal = Journal()
    journal.join("n1")
    journal.submit("a1", trajectory="r1", environment=environment(GIB))
    assert node(journal)["memory_held_bytes"] == 0

    journal.grant("a1")
    journal.finish("a1")
    row = node(journal)
    assert (row["memory_held_bytes"], row["environments"]) == (GIB, 1)

    key = TrajectoryKey("default/r1")
    journal.write([EnvironmentRemoved(trajectory=key, node="n1")], [])
    row = node(journal)
    assert (row["memory_held_bytes"], row["environments"]) == (0, 0)


def test_environment_declared_at_the_opening_is_placed_by_a_file():
    journal = Journal()
    journal.join("n1")
    opened = TrajectoryOpened(
        project="default", task="t1", trajectory="r1", environment=environment(2 * GIB)
    )
    put = TransferFile(TrajectoryKey("default/r1"), "n1", "q1", "put", "a.txt", "web")
    journal.write([opened], [put])

    assert node(journal)["memory_held_bytes"] == 2 * GIB


def test_forks_reserve_memory_from_the_order_on_and_failed_ones_release_it():
    journal = Journal()
    journal.join("n1")
    children = tuple(TrajectoryKey(f"default/c{n}") for n in range(2))
    source = TrajectoryKey("default/r1")
    order = ForkEnvironment(
        source, "n1", children, "q1", "web", environment=environment(GIB), project="default"
    )
    journal.write([], [order])
    assert node(journal)["memory_held_bytes"] == 2 * GIB

    failed = EnvironmentsForked(
        source=source, node="n1", request_id="q1", children=children, failed="full"
    )
    journal.write([failed], [])
    assert node(journal)["memory_held_bytes"] == 0


def test_an_environment_that_was_moved_counts_on_its_new_node_alone():
    journal = Journal()
    journal.join("a-new")
    journal.join("n1")
    journal.submit("a1", trajectory="r1", environment=environment(GIB))
    journal.grant("a1")
    journal.finish("a1")
    key = TrajectoryKey("default/r1")
    journal.write([], [EndMove(key, "n1", 1, "n1", "the disk is full")])
    assert node(journal)["environments"] == 0

    journal.write([], [EndMove(key, "n1", 2, "a-new")])
    journal.write([EnvironmentRemoved(trajectory=key, node="n1", copied=True)], [])

    row = node(journal)
    assert (row["name"], row["memory_held_bytes"], row["environments"]) == ("a-new", GIB, 1)
    counted = Totals()
    fold = FrameFold(counted)
    for entry in journal.entries:
        fold.fold(entry)
    assert counted.moves == {("default", "stayed"): 1, ("default", "moved"): 1}


def test_trajectory_that_ends_before_anything_ran_reserves_nothing():
    journal = Journal()
    journal.join("n1")
    journal.submit("a1", trajectory="r1", environment=environment(GIB))
    journal.write([TrajectoryFinished(project="default", trajectory="r1")], [])
    journal.finish("a1")

    assert node(journal)["memory_held_bytes"] == 0


def test_node_with_a_new_identity_has_none_of_the_old_environments():
    journal = Journal()
    journal.join("n1")
    journal.submit("a1", trajectory="r1", environment=environment(GIB))
    journal.grant("a1")
    journal.finish("a1")
    journal.join("n1", identity="i2")

    assert node(journal)["environments"] == 0


def test_oversubscribed_and_drained_nodes_say_so():
    journal = Journal()
    journal.join("n1", oversubscribed=True, isolation="bwrap")
    journal.configure(revision=1, drained_nodes=frozenset({"n1"}))

    row = node(journal)

    assert (row["oversubscribed"], row["state"], row["isolation"]) == (True, "drained", "bwrap")
