"""Indexes by which the explorer finds rows: they change how much is read, never what is found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from domain.ids import action_id
from tangram_web.explorer import indexes
from tangram_web.explorer.conditions import RowPart, rows_of
from tangram_web.explorer.facets import count_rows
from tangram_web.explorer.fields import ACTIONS
from tangram_web.explorer.indexes import rows_by_id, rows_in_order
from tangram_web.explorer.language import parse
from tangram_web.explorer.orders import orders_of
from tangram_web.explorer.reading import read_page
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = AT.timestamp()
QUERIES = (
    "", "exit:!=0", "exit:>0", "exit:0,2", "exit:!=0 task:a*", "exit:none", "outcome:completed,timeout",
    "outcome:timeout reward:none", "task:a*", "task:a,b", "task:a* act:>2s", "-task:a* act:>2s", "task:none*",
    "trajectory:t-1*", "t-1", "a", "t-1 exit:!=0", "act:1s..3s", "act:!=2s", "queue:>0.5s step:2", "trajectory:none",
    "act:>1s since:1h", "task:a* act:>1s since:1h", "queue:<1s act:>1s until:1h", "state:finished act:>1s",
)  # fmt: skip


@pytest.fixture
def rows(db: None) -> None:
    """Eighty actions of three tasks, one in ten not finished."""
    for name in ("a", "ab", "b"):
        TaskRecord.objects.create(
            key=f"default/{name}", project="default", name=name, actions=27, opened_at=AT
        )
    for number in range(20):
        TrajectoryRecord.objects.create(
            key=f"default/t-{number}", project="default", name=f"t-{number}", task="a", opened_at=AT
        )
    for number in range(80):
        store(number)


def store(number: int) -> None:
    ended: dict[str, Any] = {"state": "queued"}
    if number % 10:
        outcome = ("completed", "completed", "timeout")[number % 3]
        ended = {
            "state": "finished", "outcome": outcome, "finished_seq": 999 - number, "act_seconds": number % 5 / 1,
            "queue_seconds": number % 7 / 4, "execution_seconds": number % 3 / 1,
            "exit_code": number % 4 if outcome == "completed" else None,
            "reward": 1.0 if outcome == "completed" else None,
        }  # fmt: skip
    ago = 9000 - 100 * number
    ActionRecord.objects.create(
        id=action_id(int((NOW - ago) * 1000), number.to_bytes(8, "big")), project="default", kind="exec",
        task=("a", "ab", "b")[number % 3], trajectory=f"t-{number % 20}", step=number % 4,
        submitted_at=AT - timedelta(seconds=ago), **ended,
    )  # fmt: skip


@pytest.mark.parametrize("most", [0, 5, 1000])
@pytest.mark.parametrize("text", QUERIES)
def test_what_is_found_is_the_same_by_any_index(
    rows: None, monkeypatch: pytest.MonkeyPatch, text: str, most: int
) -> None:
    monkeypatch.setattr(indexes, "MOST_IDS", most)
    monkeypatch.setattr(indexes, "MOST_IDS_OF_MANY", most)
    monkeypatch.setattr(indexes, "WIDE", most)
    query = parse(ACTIONS, text)
    plainly = {part: set(rows_of(ACTIONS, part, query, Sight(), NOW).values_list("pk", flat=True))
               for part in RowPart}  # fmt: skip

    for part in RowPart:
        by_id = rows_by_id(ACTIONS, part, query, Sight(), NOW).order_by("-pk")
        ordered = rows_in_order(ACTIONS, part, query, Sight(), NOW, indexed=True)
        newest = rows_by_id(ACTIONS, part, query, Sight(), NOW, 500).order_by("-pk")
        for found in (by_id, newest):
            assert [row.pk for row in found] == sorted(plainly[part], reverse=True)
        assert {row.pk for row in ordered} == plainly[part]
    everything = plainly[RowPart.LIVE] | plainly[RowPart.ENDED]
    assert count_rows(ACTIONS, query, Sight(), NOW).total == len(everything)
    for order in orders_of(ACTIONS):
        page = read_page(ACTIONS, query, Sight(), order, falls=True, now=NOW, limit=100)
        assert {row.pk for row in page.rows} == everything


def plan(found: Any) -> str:
    """Return the plan of a query set, line by line."""
    sql, given = found.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", given)
        return "\n".join(row[-1] for row in cursor.fetchall())


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("exit:!=0", "action_failing"),
        ("outcome:timeout,cancelled", "action_outcome"),
        ("t-1", "action_trajectory"),
        ("trajectory:t-1,t-2", "action_trajectory"),
        ("step:2 queue:>1s", "action_queue"),
        ("task:a*", "action_task"),
    ],
)
def test_few_ids_are_read_from_the_index_alone_and_rows_from_the_newest_on(
    rows: None, text: str, index: str
) -> None:
    query = parse(ACTIONS, text)
    found = rows_by_id(ACTIONS, RowPart.ENDED, query, Sight(), NOW)
    if connection.vendor != "sqlite":  # which has statistics
        assert str(found.query) == str(rows_of(ACTIONS, RowPart.ENDED, query, Sight(), NOW).query)
        return
    said = plan(found.order_by("-pk")[:51])

    assert f"U0 USING COVERING INDEX {index}" in said
    assert "USE TEMP B-TREE FOR ORDER BY" not in said
