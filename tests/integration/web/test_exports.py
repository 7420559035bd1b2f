"""Every table is a file, and actions are a Chrome trace; both are streamed by key."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tangram_web.dashboard import chrome_trace, trace_rows
from tangram_web.dashboard.views import export
from tangram_web.dashboard.views.export import as_csv, as_json
from tangram_web.records.models import ActionRecord, TrajectoryRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def actions(count: int, **given: Any) -> None:
    ActionRecord.objects.bulk_create(
        ActionRecord(
            id=f"act_{number:05}", project="p", kind="exec", state="finished", outcome="completed",
            submitted_at=NOW + timedelta(seconds=number), queue_seconds=0.5, overhead_seconds=0.25,
            execution_seconds=2.0, act_seconds=2.75, finished_seq=number,
            finished_at=NOW + timedelta(seconds=number + 2.75), units={"cpu": 2},
            **{"task": "swe", "trajectory": "t-1", **given},
        )
        for number in range(count)
    )  # fmt: skip


def body_of(answer: Any) -> str:
    return b"".join(answer.streaming_content).decode()


def test_a_table_of_many_pages_is_complete_and_in_order(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE", 10)
    actions(35)

    answer = browser.get("/export/actions.csv")
    with CaptureQueriesContext(connection) as asked:
        rows = list(csv.DictReader(io.StringIO(body_of(answer))))

    assert [row["id"] for row in rows] == [f"act_{n:05}" for n in reversed(range(35))]
    assert json.loads(rows[0]["units"]) == {"cpu": 2}
    assert len(asked) == 4
    assert answer["Content-Disposition"] == 'attachment; filename="actions.csv"'


def test_filters_of_the_page_hold_for_the_file(browser: Client) -> None:
    actions(3)

    assert len(json.loads(body_of(browser.get("/export/actions.json?task=swe")))) == 3
    assert json.loads(body_of(browser.get("/export/actions.json?task=other"))) == []
    assert browser.get("/export/actions.json?state=nonsense").status_code == 400


def test_lines_of_json_are_rows(browser: Client) -> None:
    actions(2)

    lines = body_of(browser.get("/export/actions.ndjson")).splitlines()

    assert [json.loads(line)["id"] for line in lines] == ["act_00001", "act_00000"]


@pytest.mark.parametrize("name", ["trajectories", "tasks", "cores", "gpus", "history"])
def test_a_table_without_rows_is_an_empty_file(browser: Client, name: str) -> None:
    answer = browser.get(f"/export/{name}.json")

    assert answer.status_code == 200
    assert isinstance(json.loads(body_of(answer)), list)


@pytest.mark.parametrize("path", ["/export/secrets.csv", "/export/actions.xml"])
def test_an_unknown_table_or_form_is_404(browser: Client, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_strangers_get_no_file(db: None) -> None:
    assert Client().get("/export/actions.csv").status_code == 302
    assert Client().get("/trace/window.json").status_code == 302


def test_a_cell_is_never_a_formula() -> None:
    (text,) = as_csv([[{"task": "=cmd|' /C calc'!A0", "reward": -1.5}]])

    assert list(csv.reader(io.StringIO(text)))[1] == ["'=cmd|' /C calc'!A0", "-1.5"]


@pytest.mark.parametrize("before", [" ", "\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\0"])
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝"])
def test_blanks_do_not_hide_a_formula(before: str, sign: str) -> None:
    (text,) = as_csv([[{"task": f"{before}{sign}1", "family": f"{before}a"}]])

    assert list(csv.reader(io.StringIO(text, newline="")))[1][0] == f"'{before}{sign}1"


def test_no_rows_are_an_empty_array() -> None:
    assert json.loads("".join(as_json([]))) == []


def test_a_trace_has_slices_for_actions_and_their_phases(browser: Client) -> None:
    actions(2)

    trace = json.loads(body_of(browser.get("/trace/actions/act_00001.json")))

    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [one["name"] for one in slices] == ["exec", "queue", "overhead", "execution"]
    assert [one["ts"] for one in slices] == [0, 0, 500_000, 750_000]
    assert slices[0]["dur"] == 2_750_000
    assert slices[0]["args"]["id"] == "act_00001"


def test_actions_without_a_trajectory_share_lanes_without_overlap(browser: Client) -> None:
    actions(4, trajectory=None)

    events = list(json.loads("".join(chrome_trace.chrome_trace(
        ActionRecord.objects.order_by("id"), NOW)))["traceEvents"])  # fmt: skip

    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = [names[e["tid"]] for e in events if e["ph"] == "X" and e["cat"] == "action"]
    assert lanes == ["lane 1", "lane 2", "lane 3", "lane 1"]


def test_a_trace_of_a_window_is_titled_by_its_range(browser: Client) -> None:
    page = browser.get("/trace/?range=3600&to=1700000000").content.decode()

    assert "Trace of 1 h until 14 Nov 2023 22:13:20 UTC" in page


def test_a_trace_that_is_cut_says_so(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "MOST_ACTIONS", 2)
    monkeypatch.setattr(trace_rows, "MOST_ACTIONS", 2)
    actions(3)
    ActionRecord.objects.update(project="default")
    TrajectoryRecord.objects.create(
        key="default/t-1", project="default", name="t-1", task="swe", opened_at=NOW
    )

    trace = json.loads(body_of(browser.get("/trace/trajectories/default/t-1.json")))

    assert trace["otherData"]["cut"] is True
    assert sum(event.get("cat") == "action" for event in trace["traceEvents"]) == 2
    rows = browser.get("/trace/trajectories/default/t-1.json?form=rows").json()
    assert (rows["cut"], len(rows["actions"])) == (True, 2)


@pytest.mark.django_db
@pytest.mark.parametrize("trajectory", ["t-1", None])
def test_the_viewer_reads_the_slices_of_the_file(trajectory: str | None) -> None:
    actions(4, trajectory=trajectory)
    stored = ActionRecord.objects.order_by("id")

    events = json.loads("".join(chrome_trace.chrome_trace(stored, NOW)))["traceEvents"]
    rows = json.loads(trace_rows.trace_rows(stored.values_list(*trace_rows.COLUMNS), NOW))

    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    expected = [
        (names[e["pid"], 0], names[e["pid"], e["tid"]], e["name"], e["ts"] / 1e6, e["dur"] / 1e6)
        for e in events if e["ph"] == "X"
    ]  # fmt: skip
    found = []
    for thread, title, at, seconds, *phases in (each[:7] for each in rows["actions"]):
        process, name = rows["threads"][thread]
        place = (rows["processes"][process], name)
        found.append((*place, title, at, seconds))
        for phase, length in zip(("queue", "overhead", "execution"), phases, strict=True):
            if length:
                found.append((*place, phase, at, length))
            at += length
    assert found == expected != []
    assert [each[7] for each in rows["actions"]] == [
        e["args"]["id"] for e in events if "id" in e.get("args", {})
    ]


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        ("action=act_00000", "/trace/actions/act_00000.json?form=rows"),
        ("trajectory=p/t-1", "/trace/trajectories/p/t-1.json?form=rows"),
        ("range=60&to=1000", "/trace/window.json?range=60&amp;to=1000.000&amp;form=rows"),
    ],
)
def test_a_trace_is_opened_in_place(browser: Client, asked: str, source: str) -> None:
    actions(1)
    TrajectoryRecord.objects.create(key="p/t-1", project="p", name="t-1", task="s", opened_at=NOW)

    text = browser.get(f"/trace/?{asked}").content.decode()

    assert f'<tg-trace source="{source}">' in text
    assert browser.get(source.replace("&amp;", "&")).status_code == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [("action=act_none", 404), ("trajectory=p/none", 404), ("trajectory=%00", 404), ("action=%00", 404),
     ("range=none", 400), ("range=1e99", 400), ("to=-1", 400)],
)  # fmt: skip
def test_a_trace_of_nothing_that_there_is_says_so(browser: Client, asked: str, status: int) -> None:
    assert browser.get(f"/trace/?{asked}").status_code == status
