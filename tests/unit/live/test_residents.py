"""The GPU map says which services lie where, and what came and went."""

from __future__ import annotations

from typing import Any

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.decisions import Evict, Grant
from domain.events import ActionFinished, ChunkNews
from domain.ids import ActionId, node_resource
from tangram_web.live.frames import FrameFold
from tests.unit.live.journal import Journal


def grant(journal: Journal, name: str, units: tuple[int, ...], hosting: Hosting) -> None:
    gpu = Allocation(node_resource("gpu", "n1"), 1000 * len(units), units, hosting=hosting)
    journal.write([], [Grant(ActionId(name), "n1", (gpu,))])


def report(journal: Journal, name: str, news: ChunkNews) -> None:
    event = ActionFinished(
        action_id=ActionId(name), node="n1", outcome=Outcome.COMPLETED, chunk=news
    )
    journal.write([event], [])


def body(journal: Journal) -> dict[str, Any]:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    return fold.frames(journal.at)["holders"].body


def test_a_service_stays_where_it_was_restored_and_counts_its_uses():
    journal = Journal()
    grant(journal, "a1", (0, 1), Hosting("reward", 2**30))
    report(journal, "a1", ChunkNews(restore_seconds=2.5))
    grant(journal, "a2", (0, 1), Hosting("reward", 2**30, cached=True))

    said = body(journal)

    (there,) = said["residents"]
    assert (there["service"], there["units"], there["uses"]) == ("reward", "0-1", 2)
    assert [(row["what"], row["seconds"]) for row in said["log"]] == [("restored", 2.5)]


def test_who_leaves_for_whom_is_in_the_log_the_latest_first():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    grant(journal, "a2", (0, 1), Hosting("judge", evicted=(Home("reward", (0,)),)))

    said = body(journal)

    assert [row["service"] for row in said["residents"]] == ["judge"]
    assert [(row["what"], row["service"]) for row in said["log"]] == [
        ("restored", "judge"), ("evicted", "reward"), ("restored", "reward"),
    ]  # fmt: skip


def test_what_a_node_says_is_gone_is_gone():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    report(journal, "a1", ChunkNews(gone=(Home("reward", (0,)),)))

    said = body(journal)

    assert said["residents"] == []
    assert said["log"][0]["what"] == "gone"


def test_gpus_whose_memory_did_not_become_free_are_not_to_be_had():
    journal = Journal()
    journal.join("n1")
    report(journal, "a1", ChunkNews(stuck=(3,)))
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)

    (node,) = fold.frames(journal.at)["nodes"].body["nodes"]

    assert node["gpus"]["unhealthy"] == [3]


def test_who_was_told_to_leave_is_gone_and_in_the_log():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    report(journal, "a1", ChunkNews(restore_seconds=2.5))
    journal.write([], [Evict("n1", Home("reward", (0,)))])

    said = body(journal)

    assert said["residents"] == []
    assert said["log"][0]["what"] == "evicted"
