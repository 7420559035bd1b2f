"""The strip of resources: one row for each, with the counts of the overview, and the mark of its worst problem."""

from __future__ import annotations

from typing import Any

import msgspec

from tangram_web.problems.judge import ProblemState, SystemProblem, ranked
from tangram_web.problems.resources import ResourceRow, mark, resource_rows
from tangram_web.problems.trends import TREND_POINTS, TREND_SECONDS, LongTrend, Trends
from tests.unit.problems.facts import NOW, POOL, QUOTA, WRONG, overview
from tests.unit.problems.test_conditions import only

NEEDS: list[dict[str, Any]] = [
    {"pool": "coding", "resource": "cpu", "waiting": 3, "units": 12.0, "oldest_seconds": 2.0},
    {"pool": "coding", "resource": "api:serper", "waiting": 7, "units": 7.0, "oldest_seconds": 9.0},
    {"pool": "eval", "resource": "api:serper", "waiting": 2, "units": 2.0, "oldest_seconds": 30.0},
]
RESOURCES: dict[str, dict[str, Any]] = {
    "api:serper": {"capacity": 20, "free": 20, "quotas": [QUOTA]},
    "cpu:n1": {"capacity": 16, "free": 8},
    "stage:run": {"capacity": 256, "free": 200},
    "llm:seats@lab": {"capacity": 8, "free": 1},
}


def rows(**changes: Any) -> dict[str, ResourceRow]:
    given: dict[str, Any] = {"nodes": ["n1"], "project": ""} | changes
    pools = [POOL | {"cores_held": 16.0}, POOL | {"name": "eval", "cores_total": 0.0}]
    found = resource_rows(overview(pools=pools, wanted=NEEDS), RESOURCES, **given)
    return {row.id: row for row in found}


def test_each_resource_has_one_row_and_those_of_nodes_are_in_their_pool() -> None:
    assert list(rows()) == ["pool/coding", "api:serper", "stage:run", "llm:seats@lab"]
    assert [row.group for row in rows().values()] == ["CPU", "APIs", "Rollout stages", "LLM fleets"]


def test_counts_of_waiting_actions_are_those_of_the_overview() -> None:
    pool, api = rows()["pool/coding"], rows()["api:serper"]

    assert (pool.held, pool.capacity, pool.waiting, pool.wanted) == (16, 16, 3, 28)
    assert (api.held, api.capacity, api.waiting, api.longest_seconds) == (50, 50, 9, 30.0)
    assert api.waiting_link == "/actions/?q=state%3Aqueued%20waits%3Aapi%3Aserper"
    assert api.free_note == "none left"


def test_seats_of_a_project_are_hidden_from_others() -> None:
    assert "llm:seats@lab" in rows(project="lab")
    assert "llm:seats@lab" not in rows(project="other")


def test_a_row_is_marked_by_its_worst_problem_and_else_as_short() -> None:
    found = rows()
    worst, other = (
        SystemProblem(condition=each, state=ProblemState.HELD, began_at=NOW, seen_at=NOW)
        for each in (only(WRONG["quota_exhausted"]), only(WRONG["circuit_open"]))
    )
    cleared = msgspec.structs.replace(other, state=ProblemState.CLEARED)

    mark(found.values(), [cleared])
    assert found["api:serper"].chip == "short"
    assert found["pool/coding"].state == "short"
    again = rows()
    mark(again.values(), ranked([other, worst]))
    assert (again["api:serper"].state, again["api:serper"].chip) == ("critical", "quota used up")
    assert found["stage:run"].is_calm


def test_a_trend_has_half_an_hour_and_goes_on_after_a_restart() -> None:
    trends = Trends()
    row = ResourceRow(id="pool/coding", group="CPU", name="coding", held=8, capacity=16, wanted=24)
    for turn in range(3 * TREND_POINTS):
        trends.add([row], NOW + turn * TREND_SECONDS / 2)
    assert len(row.trend) == TREND_POINTS
    assert row.trend[-1] == (0.5, 1.5)

    later = Trends()
    later.restore([msgspec.to_builtins(row)])
    later.add([row], NOW)
    assert len(row.trend) == TREND_POINTS


def long_trend(trends: Trends, step_seconds: float) -> LongTrend:
    (found,) = [each for each in trends.long if each.step_seconds == step_seconds]
    return found


def test_longer_trends_have_means_and_gaps_where_nothing_was_measured() -> None:
    trends = Trends()
    row = ResourceRow(id="pool/coding", group="CPU", name="coding", capacity=16)
    begin = NOW - NOW % 90
    completed = []
    for turn in range(18):  # three points of 90 s, and the beginning of a gap
        row.held = 16.0 if turn % 2 else 0.0
        row.wanted = row.held
        completed.append(trends.add([row], begin + turn * TREND_SECONDS))
    assert completed.count(True) == 2
    row.held = 4.0
    assert trends.add([row], begin + 450)

    points = long_trend(trends, 90).rows(begin + 450)["pool/coding"]
    assert len(points) == TREND_POINTS
    assert points[-5:] == [(0.5, 0.5), (0.5, 0.5), (0.5, 0.5), None, None]
    assert long_trend(trends, 720).rows(begin + 450) == {}


def test_longer_trends_forget_what_is_older_than_their_range() -> None:
    trends = Trends()
    row = ResourceRow(id="pool/coding", group="CPU", name="coding", held=8, capacity=16)
    trends.add([row], NOW)
    row.id = "pool/eval"
    for turn in range(1, 3 * TREND_POINTS):
        trends.add([row], NOW + turn * 90)

    kept = long_trend(trends, 90)
    assert list(kept.rows(NOW + turn * 90)) == ["pool/eval"]
    assert len(kept.points["pool/eval"]) <= TREND_POINTS + 1
