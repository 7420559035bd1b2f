"""Training on the page of a task: rollouts by the version of the weights that sampled them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.selector_status import (
    SelectorsStatus,
    SelectorStageView,
    SelectorView,
    SwitchView,
)
from domain.selectors import Parallelism, SelectorStage
from tangram_web.dashboard.weights_versions import reward_columns, weights_versions
from tangram_web.lib import scheduler_client
from tangram_web.pools.models import SelectorRow
from tangram_web.records.models import RolloutRecord, TaskRecord
from tests.integration.web.site import NOW, rollout_id

pytestmark = pytest.mark.django_db
ROLLOUT = SelectorStage.ROLLOUT


def a_task(name: str = "grpo") -> TaskRecord:
    return TaskRecord.objects.create(key=f"default/{name}", project="default", name=name, opened_at=NOW)  # fmt: skip


def ended(number: int, version: int | None, reward: float | None, **fields: Any) -> None:
    row: dict[str, Any] = {
        "project": "default", "task": "grpo", "submitted_at": NOW, "state": "finished", "outcome": "completed",
        "finished_seq": number, "first_version": version, "reward": reward, "turns": 2, "prompt_tokens": 300,
        "response_tokens": 100, "total_seconds": 3.0, **fields,
    }  # fmt: skip
    RolloutRecord.objects.create(id=rollout_id(number), **row)


def test_rewards_tokens_and_waste_are_of_the_version_that_sampled() -> None:
    task = a_task()
    ended(1, 3, 0.0, group="a")
    ended(2, 3, 1.0, group="a")
    ended(3, 3, 1.0, group="b")
    ended(4, 3, 1.0, group="b")
    ended(5, 4, 1.0, group="c", response_tokens=300)
    ended(6, 4, None, group="c", outcome="failed")
    ended(7, None, None)
    ended(8, 4, 0.0, task="another")

    fourth, third = weights_versions(task)

    assert (third.version, third.rollouts, third.reward, third.wasted) == (3, 4, 0.75, 0.5)
    assert (third.mean_tokens, third.mean_turns, third.mean_seconds) == (400, 2, 3.0)
    assert (fourth.rollouts, fourth.failed, fourth.reward, fourth.wasted) == (2, 1, 1.0, None)
    first, last = reward_columns([fourth, third])
    assert first.height < last.height
    assert last.title == "version 4: reward 1.000"


def test_the_page_of_a_task_shows_training_where_rollouts_sampled(defaults: None) -> None:
    a_task()
    a_task("tools")
    ended(1, 3, 0.5)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))

    assert "version 3: reward 0.500" in client.get("/tasks/default/grpo/").content.decode()
    assert 'id="training"' not in client.get("/tasks/default/tools/").content.decode()


def test_switches_of_the_engines_that_sample_a_task_are_on_its_page(
    defaults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task()
    ended(1, 3, 0.5, llm="fleet:grpo")
    one, two = Parallelism(1, dp=2), Parallelism(2, dp=2)
    stage = SelectorStageView(ROLLOUT, two, "memory", "tp1dp2 lacks memory", None, 4, 700.0, 770.0, 0.0)  # fmt: skip
    switch = SwitchView("2026-01-02T03:05:05Z", ROLLOUT, one, two, "memory", "tp1dp2 lacks memory at 768 tokens", 0.0, 4.0, 3)  # fmt: skip
    view = SelectorView(
        "grpo", "", (one, two), (512, 768), (96,), 1024, 1.1, 0.15, [stage], ROLLOUT, None, False, None, [], [],
        [switch],
    )  # fmt: skip
    SelectorRow.objects.create(name="grpo", spec={"observes": ["fleet:grpo"]})
    SelectorRow.objects.create(name="other", spec={"observes": ["fleet:other"]})
    asked = []

    def selectors(name: str, **about: Any) -> SelectorsStatus:
        asked.append(name)
        return SelectorsStatus([view])

    monkeypatch.setattr(scheduler_client, "selectors", selectors)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))

    page = client.get("/tasks/default/grpo/").content.decode()

    assert asked == ["grpo"]
    assert "tp1dp2 lacks memory at 768 tokens" in page
    assert "/parallelism/grpo/" in page
