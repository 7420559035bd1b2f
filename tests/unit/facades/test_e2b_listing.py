"""Lists of sandboxes are filtered and paged as E2B's SDKs ask for it."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from contract.receipts import TrajectoryReceipt
from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest
from facades.e2b.listing import page_of


def a_sandbox(
    name: str, second: int, *, paused: bool = False, **metadata: str
) -> TrajectoryReceipt:
    facts = {"e2b": {"template": "base", "metadata": metadata}}
    return TrajectoryReceipt(
        id=name,
        project="default",
        state="open",
        task="e2b",
        environment=EnvironmentSpec(memory_bytes=2**30),
        opened_at=f"2026-01-01T00:00:{second:02d}Z",
        expires_at="2026-01-01T01:00:00Z",
        door="e2b",
        metadata=facts,
        paused_at="2026-01-01T00:30:00Z" if paused else UNSET,
    )


SANDBOXES = [
    a_sandbox("a", 1, user="x"),
    a_sandbox("b", 2, user="y", kind="z 1"),
    a_sandbox("c", 3, paused=True, user="x"),
    TrajectoryReceipt(id="none", project="default", state="open", metadata={}),
]


def names(**query: str) -> list[str]:
    return [row["sandboxID"] for row in page_of(SANDBOXES, query).items]


def test_a_page_follows_the_one_before_when_a_clock_was_set_between_them():
    first = page_of(SANDBOXES, {"limit": "2"})
    later = [a_sandbox(each, second + 7) for each, second in (("a", 1), ("b", 2), ("c", 3))]
    second = page_of(later, {"limit": "2", "nextToken": first.next})

    assert [row["sandboxID"] for row in first.items + second.items] == ["c", "b", "a"]


def test_sandboxes_are_listed_latest_first_with_what_the_sdk_reads():
    rows = page_of(SANDBOXES, {}).items

    assert [row["sandboxID"] for row in rows] == ["c", "b", "a"]
    assert [row["state"] for row in rows] == ["paused", "running", "running"]
    first = rows[-1]
    assert (first["memoryMB"], first["cpuCount"]) == (1024, 1)
    assert first["metadata"] == {"user": "x"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"state": "running"}, ["b", "a"]),
        ({"state": "paused"}, ["c"]),
        ({"state": "running,paused", "order": "asc"}, ["a", "b", "c"]),
        ({"metadata": "user=x"}, ["c", "a"]),
        ({"metadata": "user=y&kind=z%25201"}, ["b"]),
        ({"metadata": "user=y&kind=other"}, []),
        ({"template": "other"}, []),
        ({"startedAfter": "2026-01-01T00:00:01+00:00"}, ["c", "b"]),
    ],
)
def test_filters_choose_sandboxes(query, found):
    assert names(**query) == found


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_show_each_sandbox_once(order):
    seen, token = [], ""
    for _ in range(3):
        page = page_of(SANDBOXES, {"limit": "1", "order": order, "nextToken": token})
        seen += [row["sandboxID"] for row in page.items]
        token = page.next
    assert token == ""
    assert seen == (["a", "b", "c"] if order == "asc" else ["c", "b", "a"])


@pytest.mark.parametrize(
    "query", [{"limit": "x"}, {"limit": "0"}, {"nextToken": "é"}, {"startedAfter": "yesterday"}]
)
def test_queries_that_cannot_be_read_are_refused(query):
    with pytest.raises(InvalidRequest):
        page_of(SANDBOXES, query)
