"""The GPU map: services on their chunks, and the log of restores and evictions."""

from __future__ import annotations

from typing import Any

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.decisions import Evict, Forget, Grant, Prepare
from domain.events import ActionFinished, ChunkReport, ServicePrepared
from domain.ids import ActionId, node_resource
from tangram_web.live.frames import FrameFold
from tests.unit.live.journal import Journal


def grant(journal: Journal, name: str, units: tuple[int, ...], hosting: Hosting) -> None:
    gpu = Allocation(node_resource("gpu", "n1"), 1000 * len(units), units, hosting=hosting)
    journal.write([], [Grant(ActionId(name), "n1", (gpu,))])


def report(journal: Journal, name: str, news: ChunkReport) -> None:
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
    report(journal, "a1", ChunkReport(restore_seconds=2.5))
    grant(journal, "a2", (0, 1), Hosting("reward", 2**30, cached=True))

    said = body(journal)

    (there,) = said["residents"]
    assert (there["service"], there["units"], there["uses"]) == ("reward", "0-1", 2)
    assert [(row["what"], row["seconds"]) for row in said["log"]] == [("restored", 2.5)]


def test_evictions_are_in_the_log_with_their_cause_the_latest_first():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    grant(journal, "a2", (0, 1), Hosting("judge", evicted=(Home("reward", (0,)),)))

    said = body(journal)

    assert [row["service"] for row in said["residents"]] == ["judge"]
    assert [(row["what"], row["service"]) for row in said["log"]] == [
        ("restored", "judge"), ("evicted", "reward"), ("restored", "reward"),
    ]  # fmt: skip


def test_a_service_that_a_node_reports_gone_is_removed():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    report(journal, "a1", ChunkReport(gone=(Home("reward", (0,)),)))

    said = body(journal)

    assert said["residents"] == []
    assert said["log"][0]["what"] == "gone"


def test_gpus_whose_memory_did_not_become_free_are_not_to_be_had():
    journal = Journal()
    journal.join("n1")
    report(journal, "a1", ChunkReport(stuck=(3,)))
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)

    (node,) = fold.frames(journal.at)["nodes"].body["nodes"]

    assert node["gpus"]["unhealthy"] == [3]


def test_an_evicted_service_is_gone_and_in_the_log():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    report(journal, "a1", ChunkReport(restore_seconds=2.5))
    journal.write([], [Evict("n1", Home("reward", (0,)))])

    said = body(journal)

    assert said["residents"] == []
    assert said["log"][0]["what"] == "evicted"


def test_a_prefetch_is_in_the_log_with_its_duration():
    journal = Journal()
    home, other = Home("reward", (0,)), Home("judge", (1,))
    journal.write([], [Prepare("n1", home, 2**30), Prepare("n1", other, 2**30)])
    there = ServicePrepared(node="n1", home=home, seconds=2.5, chunk=ChunkReport())
    failed = ServicePrepared(
        node="n1", home=other, seconds=0.5, failed="no room", chunk=ChunkReport(gone=(other,))
    )
    journal.write([there, failed], [])
    grant(journal, "a1", (0,), Hosting("reward", 2**30, cached=True, ahead=True))

    said = body(journal)

    assert [(row["service"], row["uses"]) for row in said["residents"]] == [("reward", 1)]
    assert [(row["what"], row["service"], row["seconds"]) for row in said["log"]] == [
        ("gone", "judge", 0.0), ("ahead", "judge", 0.5), ("ahead", "reward", 2.5),
    ]  # fmt: skip


def test_a_preparation_in_host_memory_is_in_the_log_and_on_no_chunk():
    journal = Journal()
    home = Home("reward", (0,))
    journal.write([], [Prepare("n1", home, 2**30, awake=False)])
    reported = ServicePrepared(node="n1", home=home, seconds=2.5, awake=False, chunk=ChunkReport())
    journal.write([reported], [])

    said = body(journal)

    assert said["residents"] == []
    assert [(row["what"], row["seconds"]) for row in said["log"]] == [("prepared", 2.5)]


def test_a_call_reports_the_time_of_its_restore():
    journal = Journal()
    grant(journal, "a0", (1,), Hosting("judge", 2**30))
    report(journal, "a0", ChunkReport(restore_seconds=1.5))
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    grant(journal, "a2", (1,), Hosting("judge", 2**30, cached=True))
    report(journal, "a2", ChunkReport(restore_seconds=0.001))
    report(journal, "a1", ChunkReport(restore_seconds=2.5))

    said = body(journal)

    assert [(row["service"], row["seconds"]) for row in said["log"]] == [
        ("reward", 2.5), ("judge", 1.5),
    ]  # fmt: skip


def test_a_forgotten_node_has_no_services():
    journal = Journal()
    grant(journal, "a1", (0,), Hosting("reward", 2**30))
    journal.write([], [Forget("n1", "i1")])

    assert body(journal)["residents"] == []
