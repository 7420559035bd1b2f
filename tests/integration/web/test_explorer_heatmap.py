"""The heatmap of the explorer from rollups: as from all rows, and only where rollups cover the query."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from random import Random
from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import Timing
from domain.ids import action_id
from tangram_web.accounts.models import Membership, Role
from tangram_web.explorer import facets
from tangram_web.explorer.fields import ACTIONS
from tangram_web.explorer.heatmap import ActMap, heatmap_of
from tangram_web.explorer.language import parse
from tangram_web.lib import bus
from tangram_web.live.rollups.histogram import PhaseHistogram
from tangram_web.live.rollups.projects import PROJECT_SIZES, PendingRollups
from tangram_web.live.rollups.rollup import RollupBuilder, rollup_of_second
from tangram_web.live.rollups.store import RollupStore
from tangram_web.pools.models import Project
from tangram_web.records.models import ActionRecord

ACTIONS_MADE = 3000
HOURS = 2
Durations = list[tuple[float, float]]


@pytest.fixture
def browser(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A reader of everything; counts are exact to 200 rows."""
    monkeypatch.setattr(facets, "EXACT", 200)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


@pytest.fixture
def made(browser: Client) -> Durations:
    """Actions of two hours, as rows and as rollups; submission and completion time of each."""
    now, chance = time(), Random(1)
    ages = sorted((chance.uniform(0, HOURS * 3600) for _ in range(ACTIONS_MADE)), reverse=True)
    taken = [(now - age, chance.lognormvariate(1.0, 2.0)) for age in ages]
    taken = [(at, seconds) for at, seconds in taken if at + seconds < now]
    store_rows(taken)
    store_rollups(taken, now)
    return taken


def store_rows(taken: Durations, project: str = "default") -> None:
    ActionRecord.objects.bulk_create(
        ActionRecord(
            id=action_id(int(at * 1000), number.to_bytes(8, "big")), project=project, task="swe",
            kind="exec", state="finished", outcome="completed", exit_code=0, act_seconds=seconds,
            finished_seq=number, submitted_at=datetime.fromtimestamp(at, UTC),
        )
        for number, (at, seconds) in enumerate(taken)
    )  # fmt: skip


def store_rollups(taken: Durations, now: float, project: str = "default") -> None:
    """Store what the publisher stores of these actions, of all projects and of one."""
    ended = defaultdict[int, list[float]](list)
    for at, seconds in taken:
        ended[int(at + seconds)].append(seconds)
    builder, first = RollupBuilder(), int(now) - HOURS * 3600 - 60
    for second in range(first, int(now)):
        durations = PhaseHistogram()
        for seconds in ended[second]:
            durations.add(Timing(0.0, 0.0, seconds, seconds))
        outcomes = {"completed": len(ended[second])} if ended[second] else {}
        builder.add(rollup_of_second(second, 0, outcomes, {}, durations))
    complete = builder.take_complete()
    store = RollupStore(bus.redis_client(), bus.keys())
    store.save(complete)
    of_project = {size: complete[size] for size in PROJECT_SIZES}
    store.save_projects(PendingRollups(frozenset(), {project: now}, {project: of_project}))


def shown(browser: Client, query: str) -> tuple[ActMap, str]:
    drawn, page = shown_or_none(browser, query)
    assert drawn is not None
    return drawn, page


def shown_or_none(browser: Client, query: str) -> tuple[ActMap | None, str]:
    answer = browser.get("/explorer/actions/counts", {"q": query})
    return answer.context["heat"], answer.content.decode()


def by_power(drawn: ActMap) -> Counter[int]:
    """Return how many actions each power of two of a second has."""
    counts: Counter[int] = Counter()
    for cell in drawn.cells:
        counts[drawn.lowest + drawn.rows - 1 - cell.y] += cell.count
    return counts


def by_column(drawn: ActMap) -> Counter[int]:
    counts: Counter[int] = Counter()
    for cell in drawn.cells:
        counts[cell.x] += cell.count
    return counts


@pytest.mark.parametrize("query", ["since:100m", "project:default state:finished since:100m"])
def test_the_map_of_rollups_is_that_of_all_rows(
    browser: Client, made: Durations, query: str
) -> None:
    drawn, page = shown(browser, query)
    now = drawn.ends
    exact = heatmap_of(
        parse(ACTIONS, "since:100m"), [row for row in made if row[0] >= now - 6000], now
    )
    assert exact is not None
    every = sum(by_power(exact).values())

    assert f"about {drawn.actions:,} finished actions, from 15-second sums" in page
    assert drawn.columns == exact.columns
    assert drawn.begins == pytest.approx(exact.begins, abs=15)
    # What differs is at the edges of columns (15 s of 83 s) and of powers (a bin of 8.5 %).
    assert drawn.actions == pytest.approx(every, rel=0.01)
    moved = [sum(abs(of(drawn)[key] - of(exact)[key]) for key in of(drawn) | of(exact)) / every
             for of in (by_power, by_column)]  # fmt: skip
    assert moved[0] < 0.08
    assert moved[1] < 0.2
    assert max(by_column(drawn)) == drawn.columns - 1


def test_durations_of_the_map_select_the_rows_that_it_counts(
    browser: Client, made: Durations
) -> None:
    """A drag makes a query of times and durations: rows of that query are as many as the map says."""
    drawn, _ = shown(browser, "since:100m")
    left, right, low, high = 10, 40, 0, 3
    at = [datetime.fromtimestamp(drawn.begins + (drawn.ends - drawn.begins) * x / drawn.columns, UTC).isoformat()
          for x in (left, right)]  # fmt: skip
    said = sum(each.count for each in drawn.cells if left <= each.x < right
               and low <= drawn.lowest + drawn.rows - 1 - each.y < high)  # fmt: skip

    narrowed, page = shown(
        browser, f"since:{at[0][:19]}Z until:{at[1][:19]}Z act:{2**low}s..{2**high}s"
    )

    found = [row for row in made if drawn.begins + (drawn.ends - drawn.begins) * left / drawn.columns <= row[0]
             < drawn.begins + (drawn.ends - drawn.begins) * right / drawn.columns and 2**low <= row[1] <= 2**high]  # fmt: skip
    assert said == pytest.approx(len(found), rel=0.08)
    # Rollups cannot answer for durations.
    assert narrowed.size == 0
    assert "sums" not in page


@pytest.mark.parametrize(
    "query",
    ["since:100m task:swe", "since:100m act:>1ms", "since:100m -project:other", "since:100m project:def*",
     "since:100m exit:0", "since:100m project:default,other", "since:100m outcome:completed"],
)  # fmt: skip
def test_a_query_that_rollups_cannot_express_reads_rows(
    browser: Client, made: Durations, query: str
) -> None:
    drawn, page = shown(browser, query)

    assert "sums" not in page
    assert (drawn.size, drawn.actions) == (0, 200)
    assert "sample: the latest 200 actions" in page


def test_a_map_of_few_rows_is_of_these_rows(
    browser: Client, made: Durations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "EXACT", 10_000)

    drawn, page = shown(browser, "since:100m")

    assert drawn.size == 0
    assert f"{drawn.actions} finished actions</span>" in page


def test_rollups_that_miss_a_part_of_the_range_are_not_used(
    browser: Client, made: Durations
) -> None:
    store = bus.redis_client()
    for size in (1, 15, 300):
        store.zremrangebyscore(bus.keys().history(size, ""), time() - 3000, time() - 2000)

    assert shown(browser, "since:100m")[0].size == 0
    assert shown(browser, "since:25m")[0].size == 15


def test_a_member_sees_the_sums_of_own_projects_alone(browser: Client, made: Durations) -> None:
    Project.objects.create(name="secret", default_pool_id="default")
    users = get_user_model().objects
    member = Client()
    member.force_login(users.create_user("ada"))
    Membership.objects.create(user=users.get(username="ada"), project_id="secret", role=Role.VIEWER)

    assert shown_or_none(member, "since:100m project:default")[0] is None

    Membership.objects.create(
        user=users.get(username="ada"), project_id="default", role=Role.VIEWER
    )
    Project.objects.create(name="unseen", default_pool_id="default")
    assert shown(member, "since:100m project:default")[0].size == 15
    # Project secret has no rollups: rows are read.
    assert shown(member, "since:100m")[0].size == 0
