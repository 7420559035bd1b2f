"""Rows for every page of the site map, and the parameters of their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.utils import timezone

from domain.principals import Scope
from rollout.ports import Record
from scheduler.runtime.rollouts.log_store import rollout_logs
from tangram_web.accounts.models import Membership
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM
from tangram_web.dashboard.pages import ConsolePage
from tangram_web.explorer.models import SavedView
from tangram_web.pools.models import FleetRow, Project, SelectorRow
from tangram_web.pools.tokens import token_create
from tangram_web.records.models import ActionRecord, RolloutRecord, TaskRecord, TrajectoryRecord
from tangram_web.simulations.models import Simulation
from tangram_web.webhooks.models import Delivery, DeliveryAttempt, Endpoint
from tests.page_addresses import address_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDPOINT, SIMULATION, ENTRY = "whk_0000000000000000", "sim_0000000000000000", 1_000_000
VIEW = "view_0000000000000000"
PARAMETERS = {
    "action_id": "act_00001", "trajectory_key": "default/t-1", "task_key": "default/swe",
    "entry_id": str(ENTRY), "number": "1", "simulation_id": SIMULATION, "endpoint_id": ENDPOINT,
    "delivery_id": "1", "membership_id": "1", "token_id": "none", "rollout_id": f"rol_{1:028x}", "fleet": "Qwen3-8B",
    "selector": "long", "tab": "actions", "view_id": VIEW,
}  # fmt: skip
#: Pages whose parameters have a meaning of their own.
OF_PAGE: Mapping[str, Mapping[str, str]] = {
    "dashboard:export": {"name": "actions", "form": "csv"},
    "operations:verb": {"kind": "task", "name": "pause"},
    "operations:effect": {"kind": "task", "name": "pause"},
    "rollouts:record": {"number": "0"},
    "rollouts:artefact": {"name": "change.patch"},
}
_ENDED: dict[str, Any] = {
    "state": "finished", "outcome": "completed", "reward": 1.0, "finished_at": NOW, "total_seconds": 1.0,
}  # fmt: skip
QUERIES = {
    "dashboard:actions": "q=",
    "dashboard:trajectories": "q=",
    "rollouts:list": "q=",
    "explorer:complete": "typed=task:",
    "explorer:reasons": "ids=act_00001",
    "operations:verb": "target=default/swe",
    "operations:effect": "target=default/swe",
    "dashboard:gpu-past": "at=1",
    "compare:page": "a=task:default/swe&b=task:default/swe-1",
}


def site_address(page: ConsolePage) -> str:
    """Return the address of ``page`` for the rows of `site_rows`."""
    given = PARAMETERS | dict(OF_PAGE.get(page.name, {}))
    return address_of(page, given, QUERIES.get(page.name, ""))


def rollout_id(number: int) -> str:
    """Return the id of the rollout with a number."""
    return f"rol_{number:028x}"


def rollout_log(folder: Path) -> None:
    """Write the log of the first rollout below a folder of bodies."""
    logs = rollout_logs(str(folder), 1024**3)
    logs.create([(rollout_id(1), Record("request", {"instance": {"id": "a"}}))])
    turn = {"message": {"content": "hello"}, "prompt_tokens": 3, "response_tokens": 1}
    logs.append(rollout_id(1), 1, 1, Record("turn", turn))
    patch = Record("artefact", {"name": "change.patch"}, {"content": b"+new\n"})
    logs.append(rollout_id(1), 1, 2, patch)


def singles() -> None:
    """Add the rows that addresses name and `rows` does not add."""
    FleetRow.objects.create(name="Qwen3-8B", spec={"engine": "vllm"})
    SelectorRow.objects.create(name="long", spec={"degrees": [{"tp": 1, "pp": 1, "dp": 1}]})
    Project.objects.create(name="secret", default_pool_id="default")
    AuditEntry.objects.create(
        id=ENTRY, actor="ops", verb="pause", target="task/default/swe", project="default"
    )
    Endpoint.objects.create(
        id=ENDPOINT, project_id="default", url="https://a.example/", secret="whsec_"
    )
    SavedView.objects.create(
        id=VIEW, project_id="default", tab="actions", name="Slow", query="act:>5s"
    )
    Simulation.objects.create(
        id=SIMULATION, project_id="default", request={
            "workload": "ai-coding", "policies": ["minimum"], "seeds": [0], "batch": 8, "steps": 1,
            "nodes": 1, "cores": 8, "malleable": False, "rewards": "medium",
        },
    )  # fmt: skip


def rows(first: int, last: int) -> None:
    """Add actions ``first`` to ``last``, and one of every other kind of row for each ten."""
    ActionRecord.objects.bulk_create(
        ActionRecord(
            id=f"act_{number:05}", project="default", task="swe", kind="exec", state="finished",
            trajectory=f"t-{number // 10}", outcome="completed", finished_seq=number, step=1,
            submitted_at=NOW + timedelta(seconds=number), finished_at=NOW + timedelta(seconds=number),
            queue_seconds=0.1, overhead_seconds=0.0, execution_seconds=1.0, act_seconds=1.1,
            spec={"task": "swe", "kind": "exec", "exec": {"command": ["true"]}},
        )
        for number in range(first, last)
    )  # fmt: skip
    for ten in range(first // 10, last // 10):
        given = {"project": "default", "opened_at": NOW, "actions": 10}
        TrajectoryRecord.objects.create(
            key=f"default/t-{ten}", name=f"t-{ten}", task="swe", **given
        )
        task = "swe" if ten == 0 else f"swe-{ten}"
        TaskRecord.objects.create(key=f"default/{task}", name=task, **given)
        _rows_of_projects(ten)
    RolloutRecord.objects.bulk_create(
        RolloutRecord(
            id=rollout_id(number), project="default", task="swe", handler="swe", group=f"g-{number // 4}",
            sample=number % 4, submitted_at=NOW + timedelta(seconds=number),
            **({"state": "assigned", "stage": "run"} if number % 5 else _ENDED | {"finished_seq": number}),
        )
        for number in range(first, last)
    )  # fmt: skip


def _rows_of_projects(number: int) -> None:
    user = get_user_model().objects.create_user(f"user-{number}")
    Membership.objects.create(user=user, project_id="default")
    token_create(actor=SYSTEM, name="t", scopes=[Scope.READ], project="default", user=user)
    request = {"workload": "ai-coding", "policies": ["minimum"]}
    Simulation.objects.create(project_id="default", owner=user, request=request)
    Endpoint.objects.create(project_id="default", url="https://b.example/", secret="whsec_")
    delivery = Delivery.objects.create(
        endpoint_id=ENDPOINT, message_id=f"m{number}", event="node.lost", next_at=timezone.now()
    )
    DeliveryAttempt.objects.create(delivery=delivery, status=500)
