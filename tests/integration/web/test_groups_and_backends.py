"""Pages of groups and of backends: which samples train, which seats are free, and which readers see a pool."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.test import Client

from contract.rollout_status import BackendStatus, RolloutsStatus
from tangram_web.accounts.models import Membership, Role
from tests.integration.web import test_rollout_pages as pages
from tests.integration.web.test_rollout_pages import stored, text_of

pytestmark = pytest.mark.django_db
answers, staff, member = pages.answers, pages.staff, pages.member


def test_groups_are_informative_wasted_or_unfinished_and_name_carried_samples(
    staff: Client,
) -> None:
    stored(
        1,
        group="differs",
        outcome="completed",
        reward=1.0,
        instance="a",
        metadata={"dapo": {"iteration": 4}},
    )
    stored(2, group="differs", outcome="completed", reward=0.0, sample=1, parked_times=1)
    stored(3, group="equal", outcome="completed", reward=1.0)
    stored(4, group="equal", outcome="completed", reward=1.0, sample=1)
    stored(5, group="open", outcome="completed", reward=1.0)
    stored(6, group="open", state="parked", parked_times=1, sample=1)
    stored(7)

    found = staff.get("/rollouts/groups/").context["found"]

    assert [(g.group, g.kind, g.carried, g.parked) for g in found.groups] == [
        ("open", "unfinished", 0, 1), ("equal", "wasted", 0, 0), ("differs", "informative", 1, 0)
    ]  # fmt: skip
    assert found.groups[2].iteration == "4"
    [task] = found.tasks
    assert (task.groups, task.kinds["informative"], task.share, task.carried) == (3, 1, 0.5, 1)
    assert 'aria-label="rewards 1, 0"' in text_of(staff, "/rollouts/groups/")
    assert "No group matches" in text_of(staff, "/rollouts/groups/?task=none")


def test_a_group_is_on_one_page_of_the_list(staff: Client) -> None:
    for number in range(120):
        stored(number, group=f"g{number % 60:02}", sample=number // 60)

    first = staff.get("/rollouts/groups/").context["found"]
    second = staff.get(f"/rollouts/groups/?{first.older}").context["found"]

    names = [group.group for group in (*first.groups, *second.groups)]
    assert len(first.groups) == 50
    assert sorted(names) == [f"g{number:02}" for number in range(60)]
    assert all(len(group.samples) == 2 for group in (*first.groups, *second.groups))


def a_backend(number: int = 1, **fields: Any) -> BackendStatus:
    given = {"seats": 4, "taken": 1, "weights_version": 2, **fields}
    address = f"http://10.0.0.{number}:8000"
    return BackendStatus("policy", f"10.0.0.{number}:8000", number, address, **given)


def test_backends_show_seats_health_and_versions(staff: Client, answers: RolloutsStatus) -> None:
    answers.pools.update({"policy": 3, "empty": 1})
    answers.backends += [
        a_backend(1), a_backend(2, unhealthy="it answers nothing"), a_backend(3, drained=True),
    ]  # fmt: skip

    page = text_of(staff, "/rollouts/backends/")

    for part in (
        "1 of 3 backends takes new rollouts", "unhealthy: it answers nothing", "drained, 1 in flight",
        "3 of 12 taken; 4 on backends that take new rollouts", "backends added next serve 3",
        "/act/backend/drain/?target=policy%2F10.0.0.1%3A8000", "/act/backend/resume/?target=policy%2F10.0.0.3%3A8000",
        "No backend serves this pool", "/act/backends/clear/?target=policy",
    ):  # fmt: skip
        assert part in page, part


def test_a_pool_of_a_project_is_seen_by_its_members_and_changed_by_its_operators(
    member: Client, answers: RolloutsStatus
) -> None:
    answers.pools.update({"policy": 1, "policy@default": 1, "policy@secret": 1})
    for number, pool in enumerate(answers.pools, 1):
        answers.backends.append(msgspec.structs.replace(a_backend(number), pool=pool))

    page = text_of(member, "/rollouts/backends/")
    assert "policy@secret" not in page
    assert "http://10.0.0.2:8000" in page  # of its own pool
    assert "http://10.0.0.1:8000" not in page
    assert "/act/" not in page
    Membership.objects.update(role=Role.OPERATOR)
    page = text_of(member, "/rollouts/backends/")
    assert "/act/backends/clear/?target=policy%40default" in page
    assert "/act/backends/clear/?target=policy&" not in page
    assert '/act/backends/clear/?target=policy"' not in page
