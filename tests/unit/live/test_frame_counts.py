"""A fold counts live actions as a recount of its journal does."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.action import Kind, Outcome
from domain.codec import JournalEntry
from domain.decisions import Finish, Forget, Grant, Requeue
from domain.events import ActionStarted, ActionSubmitted, NodeLost, TaskOpened, TrajectoryOpened
from domain.inventory import ProjectConfig
from tangram_web.live.frames import FrameFold
from tests.tiers import by_tier
from tests.unit.live.journal import Journal

IDS = tuple(f"a{number}" for number in range(6))
POOLS = ("default", "east")


@st.composite
def journals(draw: st.DrawFn) -> list[JournalEntry]:
    """Journals in which every action goes along its transitions, some without a beginning."""
    journal = Journal()
    journal.join("n1")
    journal.join("n2", pool="east")
    states: dict[str, str] = {}
    attempts: Counter[str] = Counter()
    kinds: dict[str, Kind] = {}
    for name in draw(st.lists(st.sampled_from(IDS), max_size=40)):
        journal.at += draw(st.sampled_from((0.0, 0.3, 1.7)))
        state = states.get(name, "new")
        if state == "new":
            kinds[name] = draw(st.sampled_from((Kind.EXEC, Kind.NOOP, Kind.LEASE)))
            pool = draw(st.sampled_from(POOLS))
            journal.submit(name, pool=pool, kind=kinds[name], cost={"cpu": (1000,)})
            states[name] = "queued"
        elif state == "queued" and draw(st.booleans()):
            attempts[name] += 1
            cores = draw(st.sampled_from(((0,), (1, 2))))
            milli = draw(st.sampled_from((None, 100)))
            journal.grant(name, cores, milli=milli, attempt=attempts[name])
            states[name] = "running" if kinds[name] is Kind.LEASE else "granted"
        elif state == "granted" and draw(st.booleans()):
            # Reports of an earlier attempt may still arrive; they start nothing.
            late = draw(st.booleans())
            journal.start(name, attempt=attempts[name] - late)
            states[name] = "granted" if late else "running"
        elif state in ("granted", "running") and draw(st.booleans()):
            journal.requeue(name)
            states[name] = "queued"
        elif state != "over":
            journal.finish(name, draw(st.sampled_from(list(Outcome))))
            states[name] = "over"
    return journal.entries


def recount(entries: list[JournalEntry]) -> dict[str, Any]:
    """Say where everything is, from each action's whole story."""
    stories: dict[str, list[Any]] = {}
    for entry in entries:
        for message in (*entry.events, *entry.decisions):
            if isinstance(message, ActionSubmitted):
                stories.setdefault(message.action.id, []).append(message)
            elif isinstance(message, (Grant, ActionStarted, Requeue, Finish)):
                stories.setdefault(message.action_id, []).append(message)
    states: Counter[tuple[str, str]] = Counter()
    held: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    for story in stories.values():
        last = _state(story)
        if isinstance(story[-1], Finish):
            outcomes[story[-1].outcome.value] += 1
            continue
        states[story[0].action.pool, last] += 1
        if last != "queued":
            grant = [message for message in story if isinstance(message, Grant)][-1]
            held.update(grant.allocations[0].units)
    return {"states": states, "held": held, "outcomes": outcomes}


def _state(story: list[Any]) -> str:
    since_queued = story
    for place, message in enumerate(story):
        if isinstance(message, Requeue):
            since_queued = story[place + 1 :]
    grants = [message for message in since_queued if isinstance(message, Grant)]
    if not grants:
        return "queued"
    started = any(
        isinstance(message, ActionStarted) and message.attempt == grants[-1].attempt
        for message in since_queued
    )
    leased = story[0].action.kind is Kind.LEASE
    return "running" if started or leased else "granted"


@given(journals())
@settings(max_examples=by_tier(15, 60, 600), deadline=None)
def test_fold_agrees_with_a_recount(entries):
    fold = FrameFold()
    for entry in entries:
        fold.fold(entry)
    frames = fold.frames(entries[-1].at)
    expected = recount(entries)

    body = frames["overview"].body
    states = Counter(
        {
            (pool["name"], state): pool[state]
            for pool in body["pools"]
            for state in ("queued", "granted", "running")
        }
    )
    assert +states == expected["states"]
    assert body["counts"] == {
        state: sum(count for (_, one), count in expected["states"].items() if one == state)
        for state in ("queued", "granted", "running")
    }
    outcomes = {row["outcome"]: row["total"] for row in body["outcomes"] if row["total"]}
    assert outcomes == dict(expected["outcomes"])
    held = frames["nodes"].body["nodes"][0]["cores"]
    assert {core for core, byte in enumerate(held) if byte} == set(expected["held"])


@given(journals())
@settings(max_examples=by_tier(7, 30, 300), deadline=None)
def test_fold_keeps_nothing_of_actions_that_are_over(entries):
    journal = Journal(at=entries[-1].at, entries=list(entries))
    fold = FrameFold()
    for entry in entries:
        fold.fold(entry)
    for name in list(fold.open_actions.by_id):
        fold.fold(journal.finish(name))

    assert fold.open_actions.by_id == {}
    assert fold.frames(journal.at)["overview"].body["counts"] == {
        "queued": 0, "granted": 0, "running": 0
    }  # fmt: skip
    assert +fold.capacity.held == Counter()


def folded(journal: Journal) -> dict[str, Any]:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    frames = fold.frames(journal.at)
    return frames["overview"].body | frames["nodes"].body


def pools_of(journal: Journal) -> dict[str, int]:
    return {pool["name"]: pool["queued"] for pool in folded(journal)["pools"] if pool["queued"]}


def test_action_without_a_pool_counts_where_its_task_is_bound():
    journal = Journal()
    journal.write([TaskOpened(project="default", task="bound", pool="east")], [])
    journal.submit("a1", task="bound")
    journal.submit("a2", task="free")

    assert pools_of(journal) == {"east": 1, "default": 1}


def test_action_without_a_pool_counts_in_its_projects_default():
    journal = Journal()
    journal.configure(projects={"lab": ProjectConfig("lab", default_pool="west")})
    journal.submit("a1", project="lab")

    assert pools_of(journal) == {"west": 1}


def test_later_actions_of_a_trajectory_stay_in_its_pool():
    journal = Journal()
    opened = TrajectoryOpened(project="default", task="t1", trajectory="r1", pool="east")
    journal.write([opened], [])
    journal.submit("a1", trajectory="r1")
    journal.submit("a2", trajectory="r1", pool="west")

    assert pools_of(journal) == {"east": 2}


def test_grant_of_an_action_whose_submission_was_trimmed_is_counted():
    journal = Journal()
    journal.join("n1", pool="east")
    journal.grant("a1", (0, 1))

    body = folded(journal)

    assert body["counts"] == {"queued": 0, "granted": 1, "running": 0}
    assert body["nodes"][0]["cores"] == bytes([255, 255, 0, 0])


def test_the_oldest_actions_are_first_and_returned_ones_keep_their_place():
    journal = Journal()
    for name in ("a1", "a2", "a3"):
        journal.submit(name)
        journal.at += 1
    journal.grant("a1")
    journal.requeue("a1")

    body = folded(journal)

    assert [row["id"] for row in body["waiting"]] == ["a1", "a2", "a3"]
    assert body["oldest_seconds"] == 3.0


def test_at_most_twenty_waiters_and_finished_actions_are_listed():
    journal = Journal()
    for number in range(25):
        journal.submit(f"w{number}")
        journal.submit(f"f{number}")
        journal.finish(f"f{number}")

    body = folded(journal)

    assert len(body["waiting"]) == 20
    assert [row["id"] for row in body["finished"]] == [f"f{n}" for n in range(24, 4, -1)]


def test_repeated_submission_is_counted_once():
    journal = Journal()
    journal.submit("a1")
    journal.submit("a1")

    assert folded(journal)["counts"]["queued"] == 1


def test_node_that_fell_silent_is_shown_lost_and_gives_no_cores():
    journal = Journal()
    journal.join("n1")
    journal.write([NodeLost(node="n1", incarnation=1)], [])

    body = folded(journal)

    assert body["nodes"][0]["state"] == "lost"
    assert body["cores"] == {"held": 0.0, "total": 0.0, "lost": 4.0}
    (pool,) = body["pools"]
    assert (pool["nodes"], pool["nodes_lost"], pool["cores_lost"]) == (1, 1, 4.0)


def test_a_forgotten_node_is_on_no_map_and_in_no_sum():
    journal = Journal()
    journal.join("n1")
    journal.join("n2")
    journal.submit("a1")
    journal.grant("a1", node="n1")
    journal.write([NodeLost(node="n1", incarnation=1)], [])
    journal.finish("a1", node="n1")

    journal.write([], [Forget("n1", "identity")])

    body = folded(journal)
    assert [node["name"] for node in body["nodes"]] == ["n2"]
    assert body["cores"]["held"] == 0.0
    pools = {pool["name"]: pool for pool in body["pools"]}
    assert pools["default"]["cores_total"] == body["cores"]["total"]
