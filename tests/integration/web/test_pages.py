"""Every page opens: with data, without, and while the scheduler is away."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import time
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.template.loader import render_to_string
from django.test import Client

from contract.responses import (
    ActionResponse,
    DecisionDetails,
    DecisionsResponse,
    QueueDetails,
    QueuesResponse,
    WaitDetails,
)
from domain.action import ActionState
from domain.advice import EvictionTrial, ExtraUnitsEffect, IdleEnvironment, UnblockHint, UnmetSize
from domain.codec import Reply, decode_command, encode
from domain.events import ActionQueried, DecisionsQueried, QueuesQueried, StatusQueried
from tangram_web.lib import bus, scheduler_client
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    StepRecord,
    TaskRecord,
    TrajectoryRecord,
)

LIVE_PAGES = ("/queues/", "/decisions/", "/workers/", "/apis/")
MAP_PAGES = ("/cpu/", "/gpu/")
ROW_PAGES = ("/trajectories/", "/tasks/", "/actions/")
NOW = datetime.now(UTC)
MARKUP = "<script>alert(1)</script>"
ONE_MORE = ExtraUnitsEffect(1, 20.0, 10.0, 15.0, 4)
WHY = WaitDetails(
    "short_of", "waits for 2 of cpu:n1, 1 free on node n1", "cpu:n1", 3, "act_b", 30.0,
    one_more=ONE_MORE,
)  # fmt: skip

SHARE = {
    "pool": "default", "resource": "cpu", "project": "lab", "nominal": 3, "borrow": None,
    "lend": 1, "used": 5, "borrowed": 2, "left": 0, "waiting": 4,
}  # fmt: skip


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    user = get_user_model().objects.create_user("ops", is_staff=True)
    client.force_login(user)
    return client


@pytest.fixture
def scheduler(redis_bus: Any) -> Iterator[None]:
    """A stand-in that answers queries as a loop does."""
    stop = threading.Event()

    def serve() -> None:
        after: dict[Any, Any] = {"tangram:inbox": "0-0", "tangram:questions": "0-0"}
        while not stop.is_set():
            for stream, entries in redis_bus.xread(after, block=50) or []:
                for entry_id, fields in entries:
                    after[stream.decode()] = entry_id
                    for message in fields.values():
                        question = decode_command(message)
                        body = msgspec.Raw(encode(answer_to(question)))
                        reply = Reply(question.request_id, body=body)
                        redis_bus.publish(question.reply_to, encode(reply))

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.set()
    thread.join()


def answer_to(question: Any) -> Any:
    match question:
        case QueuesQueried():
            line = QueueDetails(
                "default", None, {"cpu": 2}, 2**30, 7, "act_a", "p", MARKUP, None, 3.0, WHY
            )
            return QueuesResponse([line], 1, 7)
        case DecisionsQueried():
            trials = [EvictionTrial(0, 12.5, 1.5), EvictionTrial(1, None, None)]
            one = DecisionDetails(
                1.0, "cpu:n1", "paper", ["act_a"], {"act_a": 4}, [], 2, 12.5, trials
            )
            return DecisionsResponse([one])
        case StatusQueried():
            quantiles = {"p50": 0.001, "p99": 0.01}
            return {"pass_seconds": quantiles, "cycle_seconds": quantiles, "seq": 42,
                    "revision": 1, "version": "0.1.0", "resources": {}, "shares": [SHARE]}  # fmt: skip
        case ActionQueried():
            return ActionResponse(id=question.action_id, state=ActionState.QUEUED, waiting=WHY)
    raise AssertionError(question)


def a_task() -> None:
    TaskRecord.objects.create(key="default/swe", project="default", name="swe", opened_at=NOW)
    TrajectoryRecord.objects.create(
        key="default/t-1", project="default", name="t-1", task="swe", opened_at=NOW, actions=2
    )
    for number in range(3):
        at = NOW + timedelta(seconds=number)
        done = number < 2
        ActionRecord.objects.create(
            id=f"act_{number}", project="default", task="swe", trajectory="t-1", kind="exec",
            submitted_at=at, step=5, state="finished" if done else "queued",
            outcome="completed" if done else None, finished_seq=number if done else None,
            finished_at=at if done else None, reward=0.5, detail=MARKUP,
            queue_seconds=0.1 if done else None, overhead_seconds=0.0,
            execution_seconds=0.4, act_seconds=0.5 if done else None,
        )  # fmt: skip
    of_task = {"project": "default", "task": "swe", "queue_seconds": 0.2, "act_seconds": 1.0}
    EndRecord.objects.create(outcome="completed", actions=2, **of_task)
    StepRecord.objects.create(step=5, actions=3, finished=2, rewarded=2, reward=1.0, **of_task)


@pytest.mark.parametrize("page", [*LIVE_PAGES, *MAP_PAGES, *ROW_PAGES])
def test_a_page_opens_before_anything_has_happened(
    browser: Client, scheduler: None, page: str
) -> None:
    answer = browser.get(page)
    assert answer.status_code == 200
    assert b"aria-current" in answer.content


@pytest.mark.parametrize("page", LIVE_PAGES)
def test_a_page_says_that_the_scheduler_is_away(
    browser: Client, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.05)
    text = browser.get(page).content.decode()
    assert "the scheduler does not answer" in text


def test_queues_say_what_waits_for_what(browser: Client, scheduler: None) -> None:
    text = browser.get("/queues/").content.decode()
    assert "7 actions wait in 1 queue" in text
    assert "cpu 2 · memory 1 GiB" in text
    assert "</a> of projects" in text
    assert '<td>lab</td><td class="right">5</td><td class="right">3</td>' in text
    assert WHY.reason in text
    assert MARKUP not in text


def test_decisions_show_candidates_and_what_else_was_tried(
    browser: Client, scheduler: None
) -> None:
    text = browser.get("/decisions/").content.decode()
    assert "cpu:n1" in text
    assert "2 options compared" in text
    assert "not better" in text


def test_workers_show_lags(browser: Client, scheduler: None) -> None:
    text = browser.get("/workers/").content.decode()
    assert "no leader" in text
    assert "projector" in text
    assert "entry 42" in text


def test_workers_show_prepared_environments(
    browser: Client, scheduler: None, redis_bus: Any
) -> None:
    assert 'id="warm"' not in browser.get("/workers/").content.decode()
    facts = {
        "wanted": 4, "kept": 3, "taken": 2, "made": 5, "memory_bytes": 2**20,
        "problem": f"no image {MARKUP}",
    }  # fmt: skip
    life = {"role": "node", "pid": 1, "at": time() + 300, "warm": {"swe:1": facts}}
    redis_bus.hset(bus.keys().workers, "node@n1", json.dumps(life))

    text = browser.get("/workers/").content.decode()

    assert "<td>3 of 4</td><td>2</td><td>5</td><td>1.0\xa0MB</td>" in text
    assert MARKUP not in text


@pytest.mark.parametrize(
    ("reward", "command", "warning"),
    [
        ({"from": "exit_code"}, ["python3", "-m", "pytest"], "exit code of pytest"),
        ({"from": "exit_code"}, ["sh", "-c", "go test ./..."], "exit code of go test"),
        ({"from": "exit_code", "runner": "pytest"}, ["pytest"], ""),
        ({"from": "exit_code"}, ["python3", "score.py"], ""),
        (None, ["pytest"], ""),
    ],
)
def test_a_page_warns_of_a_reward_that_does_not_prove_that_tests_ran(
    browser: Client,
    scheduler: None,
    reward: dict[str, str] | None,
    command: list[str],
    warning: str,
) -> None:
    a_task()
    spec = {"kind": "exec", "exec": {"command": command}} | ({"reward": reward} if reward else {})
    ActionRecord.objects.filter(id="act_1").update(spec=spec)
    text = browser.get("/actions/act_1/").content.decode()
    assert ("does not prove that a test ran" in text) == bool(warning)
    assert warning in text


def test_a_waiting_action_says_why(browser: Client, scheduler: None) -> None:
    a_task()
    text = browser.get("/actions/act_2/").content.decode()
    assert "Why it waits" in text
    assert WHY.reason in text
    assert "/actions/act_b/" in text
    assert MARKUP not in text


def test_a_waiting_action_says_what_would_free_it(browser: Client, scheduler: None) -> None:
    a_task()
    text = browser.get("/actions/act_2/").content.decode()
    assert "1 more of cpu:n1" in text
    assert "starts about <strong>20 s</strong> earlier, in a simulation" in text
    assert "4 more of cpu:n1, for it and the 3 ahead of it" in text


CURES = {
    "quota": (
        WaitDetails("short_of", "waits", "api:search", 2,
                 relief=UnblockHint("quota", 1, 0, 3, 6.0, 9.0)),
        "enough is left in <strong>9.0 s</strong>, for it and the 2 ahead of it",
    ),
    "memory": (
        WaitDetails("short_of", "waits", "memory:n1", 0,
                 relief=UnblockHint("memory", 4 * 2**30, 2**30, 3 * 2**30, None, 50.0,
                                   [IdleEnvironment("default", "t-idle", 3 * 2**29, 60.0)], 3 * 2**29)),
        '<a href="/trajectories/default/t-idle/">t-idle</a> 1.5 GiB',
    ),
    "size": (
        WaitDetails("too_large", "too large", subject="default",
                 relief=UnblockHint("size", sizes=[UnmetSize("gpu_memory", 80 * 2**30, 2**34)])),
        "it needs 80 GiB; the largest has 16 GiB",
    ),
    "pool": (WaitDetails("pool_paused", "pool x is paused", subject="x"), "/pool/resume/?target=x"),
    "task": (WaitDetails("task_paused", "paused", subject="p/t"), "/task/resume/?target=p/t"),
    "drained": (WaitDetails("node_drained", "drained", subject="n1"), "/node/resume/?target=n1"),
    "lost": (WaitDetails("node_lost", "silent", subject="n1"), "must send heartbeats again"),
    "none": (WaitDetails("no_node", "none", subject="east"), "TANGRAM_NODE_POOL=east ./tangram up"),
    "share": (WaitDetails("share", "its share", "cpu"), "other projects return borrowed units"),
    "deferred": (WaitDetails("deferred", "held back", "cpu:n1", starts_in_seconds=3.0), "after the next action ends"),
    "turn": (WaitDetails("trajectory_busy", "one at a time", blocked_by="act_b"), "/actions/act_b/"),
    "behind": (
        WaitDetails("behind", "act_b came before it", "cpu:n1", 1, "act_b", one_more=ONE_MORE),
        "</a> must start; it waits for cpu:n1",
    ),
    "cores": (
        WaitDetails("short_of", "waits for 4 of cpu:n1", "cpu:n1", 0, one_more=ONE_MORE),
        '<a href="/cpu/">cores of n1 with their holders</a>',
    ),
    "gpus": (
        WaitDetails("short_of", "waits for 2 of gpu:n1", "gpu:n1", 0),
        '<a href="/gpu/">GPUs of n1 with their holders</a>',
    ),
    "arriving": (WaitDetails("arriving", "just arrived"), "it is considered again"),
}  # fmt: skip


@pytest.mark.parametrize("cure", CURES)
def test_a_waiting_action_shows_what_would_free_it(
    browser: Client, monkeypatch: pytest.MonkeyPatch, cure: str
) -> None:
    a_task()
    get_user_model().objects.update(is_superuser=True)
    why, words = CURES[cure]
    view = ActionResponse(id="act_2", state=ActionState.QUEUED, waiting=why)
    monkeypatch.setattr(scheduler_client, "live_action", lambda _: view)

    text = browser.get("/actions/act_2/").content.decode()

    assert "How it can start" in text
    assert words in text


def test_a_way_to_a_cure_is_offered_to_those_who_may_take_it(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task()
    for cure, offered in (("pool", False), ("task", True), ("drained", True)):
        why, words = CURES[cure]
        view = ActionResponse(id="act_2", state=ActionState.QUEUED, waiting=why)
        monkeypatch.setattr(scheduler_client, "live_action", lambda _, view=view: view)

        text = browser.get("/actions/act_2/").content.decode()

        assert (words in text) is offered, cure
        assert "How it can start" in text


def test_a_trajectory_shows_its_actions_over_time(browser: Client) -> None:
    a_task()
    text = browser.get("/trajectories/default/t-1/").content.decode()
    assert text.count('<a href="/actions/act_') == 2 * 3
    assert "waited for resources" in text
    assert 'href="/tasks/default/swe/"' in text


def test_a_trajectory_shows_what_it_waited_on_and_its_steps(browser: Client) -> None:
    a_task()
    text = browser.get("/trajectories/default/t-1/").content.decode()
    assert ">makespan</a>" in text
    assert text.count('class="step"') == 1
    assert MARKUP not in text


def test_a_task_shows_steps_and_ends(browser: Client) -> None:
    a_task()
    text = browser.get("/tasks/default/swe/").content.decode()
    assert "<td>5</td><td>3</td>" in text
    assert "completed" in text
    assert "0.500" in text


def test_lists_filter_and_refuse_nonsense(browser: Client) -> None:
    a_task()
    assert b"t-1" in browser.get("/trajectories/?state=open&task=swe", follow=True).content
    assert b"No trajectory matches" in browser.get("/trajectories/?q=task:other").content
    assert b"is no time" in browser.get("/trajectories/?q=until:yesterday").content
    assert b"this cursor was not made" in browser.get("/trajectories/?after=yesterday").content
    assert b"U+0000" in browser.get("/trajectories/?task=%00", follow=True).content


def test_actions_are_listed_by_the_door_they_came_through(browser: Client) -> None:
    a_task()
    ActionRecord.objects.filter(id="act_1").update(door="e2b")

    def listed(door: str) -> list[str]:
        text = browser.get(f"/actions/?door={door}", follow=True).content.decode()
        return re.findall(r'<tr data-id="(act_\d)"', text)

    assert listed("e2b") == ["act_1"]
    assert listed("native") == ["act_2", "act_0"]
    assert 'data-column="door">e2b</td>' in browser.get("/actions/?q=").content.decode()
    assert '?door=e2b">e2b</a>' in browser.get("/actions/act_1/").content.decode()
    assert "<dd>native API</dd>" in browser.get("/actions/act_0/").content.decode()
    exported = browser.get("/export/actions.ndjson?door=e2b").getvalue().decode().splitlines()
    assert [json.loads(line)["door"] for line in exported] == ["e2b"]
    assert b"U+0000" in browser.get("/actions/?door=%00", follow=True).content


@pytest.mark.parametrize("page", ["/trajectories/default/nope/", "/tasks/default/nope/"])
def test_an_unknown_object_is_404_with_a_cure(browser: Client, page: str) -> None:
    answer = browser.get(page)
    assert answer.status_code == 404
    assert b"No such" in answer.content


@pytest.mark.parametrize("address", ["/no/such/page/", "/operate", "/trajectories/default/none/"])
def test_a_page_that_is_missing_keeps_the_frame_and_offers_no_sign_in(
    browser: Client, address: str
) -> None:
    answer = browser.get(address, follow=True)
    text = answer.content.decode()

    assert answer.status_code == (200 if address == "/operate" else 404)
    assert 'class="side"' in text
    assert "Sign in<" not in text


def test_a_missing_page_offers_those_who_are_not_signed_in_the_way_in(db: None) -> None:
    answer = Client().get("/no/such/<page>/")

    assert answer.status_code == 404
    assert '<a href="/login/">Sign in</a>' in answer.content.decode()
    assert "/no/such/&lt;page&gt;/" in answer.content.decode()
    assert "The page failed" in render_to_string("500.html")


def test_a_locked_database_is_answered_503_and_asks_for_another_try(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*args: Any, **named: Any) -> Any:
        raise OperationalError("database is locked")

    monkeypatch.setattr("tangram_web.dashboard.views.task.selectors.task_record", locked)
    monkeypatch.setattr("tangram_web.records.selectors.tasks_seen_by", locked)

    browser.raise_request_exception = False
    page, answer = browser.get("/tasks/default/swe/"), browser.get("/api/v1/tasks")

    assert (page.status_code, page.headers["Retry-After"]) == (503, "2")
    assert "The database does not answer" in page.content.decode()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.json()["code"] == "unavailable"


def test_pages_of_lists_go_on_where_the_last_ended(browser: Client) -> None:
    for number in range(60):
        TrajectoryRecord.objects.create(
            key=f"default/t{number:02}", project="default", name=f"t{number:02}", task="swe",
            opened_at=NOW + timedelta(seconds=number),
        )  # fmt: skip
    first = browser.get("/trajectories/?q=")
    older = first.context["found"].older
    second = browser.get(f"/trajectories/?{older}")
    names = [row.name for page in (first, second) for row in page.context["found"].rows]
    assert names == [f"t{number:02}" for number in reversed(range(60))]
