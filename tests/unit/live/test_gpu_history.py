"""GPU history: snapshots on each change, repeated now and then without one."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.decisions import Grant
from domain.events import ActionFinished, ChunkReport, NodeJoined
from domain.ids import ActionId, node_resource
from domain.inventory import NodeInventory, ResourceInventory
from tangram_web.live.frames import FrameFold
from tangram_web.live.gpu_history import REPEAT_SECONDS, STEP_SECONDS, GpuHistory, GpuSnapshot
from tests.tiers import by_tier
from tests.unit.live.journal import WALL_OFFSET, Journal


def with_gpus() -> Journal:
    journal = Journal(at=1_000_005.0)
    gpu = ResourceInventory(4000, ((0, 1, 2, 3),))
    journal.write([NodeJoined(node=NodeInventory("n1", "i1", 1, "default", {"gpu": gpu}))], [])
    return journal


def call(journal: Journal, name: str, units: tuple[int, ...], service: str = "reward") -> None:
    """Grant a chunk to a call of ``service``."""
    held = Allocation(node_resource("gpu", "n1"), 1000 * len(units), units,
                      hosting=Hosting(service, 2**30))  # fmt: skip
    journal.submit(name)
    journal.write([], [Grant(ActionId(name), "n1", (held,))])


def folded(journal: Journal, until: float, newest: int = -1) -> list[GpuSnapshot]:
    fold = FrameFold()
    fold.gpu_history = GpuHistory(newest)
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(until)
    return fold.gpu_history.take()


def test_a_snapshot_has_the_holder_and_the_services_of_each_chunk() -> None:
    journal = with_gpus()
    call(journal, "a1", (0, 1))

    first, *_ = folded(journal, journal.at + 20)

    assert first.at % STEP_SECONDS == 0
    (node,) = first.nodes
    assert (node["name"], node["gpus"]["groups"]) == ("n1", ["0-3"])
    assert [(one["id"], one["units"]) for one in node["holders"]] == [("a1", "0-1")]
    assert [(one["service"], one["units"]) for one in first.residents] == [("reward", "0-1")]
    assert [row["what"] for row in first.log] == ["restored"]


def test_an_unchanged_state_is_repeated_only_now_and_then() -> None:
    journal = with_gpus()
    call(journal, "a1", (0, 1))

    scenes = folded(journal, journal.at + REPEAT_SECONDS + 2 * STEP_SECONDS)

    assert [scene.at - scenes[0].at for scene in scenes] == [0, REPEAT_SECONDS]
    assert scenes[1].log == []


def test_a_change_makes_the_next_snapshot_with_its_restores_and_evictions() -> None:
    journal = with_gpus()
    call(journal, "a1", (0, 1))
    journal.at += 20
    news = ChunkReport(gone=(Home("reward", (0, 1)),))
    journal.write(
        [
            ActionFinished(
                action_id=ActionId("a1"), node="n1", outcome=Outcome.COMPLETED, chunk=news
            )
        ],
        [],
    )
    journal.finish("a1")

    before, after = folded(journal, journal.at + 20)

    assert after.at - before.at in (STEP_SECONDS, 2 * STEP_SECONDS)
    assert (after.residents, after.nodes[0]["holders"]) == ([], [])
    assert [row["what"] for row in after.log] == ["gone"]


def test_a_system_without_gpus_has_no_scenes() -> None:
    journal = Journal()
    journal.join("n1")

    assert folded(journal, journal.at + 100) == []


@settings(max_examples=by_tier(5, 20, 200))
@given(st.lists(st.sampled_from(range(4)), max_size=4), st.integers(0, 5))
def test_a_fold_that_begins_again_makes_the_snapshots_that_are_not_stored_yet(
    chunks: list[int], stored: int
) -> None:
    journal = with_gpus()
    for number, chunk in enumerate(chunks):
        call(journal, f"a{number}", (chunk,), f"s{number}")
        journal.at += 11
        journal.finish(f"a{number}")
        journal.at += 11
    until = journal.at + 60
    once = folded(journal, until)
    newest = once[min(stored, len(once) - 1)].at

    again = folded(journal, until, newest)

    assert [scene.at for scene in again if scene.at > newest] == [scene.at for scene in again]
    later = {scene.at: scene for scene in once if scene.at > newest}
    assert {scene.at for scene in again} >= set(later)
    for scene in again:
        if scene.at in later:
            assert msgspec.json.encode(scene) == msgspec.json.encode(later[scene.at])
    assert all(scene.at >= journal.entries[0].at + WALL_OFFSET - 1 for scene in once)
